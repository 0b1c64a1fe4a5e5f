"""Selective recomputation repeats no product or collective and changes no gradient."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from components.config.model_spec.positions import AlibiSpec
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.context import SequencePart, split_sequence
from components.distributed.experts import Dispatch, split_experts
from components.distributed.tensor import split_tensors
from tests.components.distributed import tensor_cases
from tests.components.distributed.layout_cases import Layout, gather, layout_mesh
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts
from tests.components.distributed.test_context import context_mesh
from tests.components.distributed.test_experts import mixture
from tests.components.distributed.test_tensor import GATED, HEAD_NORMS, NORMS_AFTER, SINKS
from tests.components.model.comparison import gradient_of
from tests.components.model.operators_seen import DEAR, Operators
from tests.components.model.routing_terms import auxiliary_terms

Found = tuple[float, dict[str, int], dict[str, int]]


def compare_recomputation(parts: Parts, layout: str, recompute: Any = "selective") -> Found:
    """Return the largest gradient difference and the operators of both backward passes."""
    passes = [_gradients(parts, layout, choice) for choice in ("none", recompute)]
    (plain, called), (thrifty, again) = passes
    differences = ((a - b).abs().max().item() for a, b in zip(plain, thrifty, strict=True))
    return max(differences), called, again


def _gradients(
    parts: Parts, layout: str, recompute: Any
) -> tuple[list[Tensor], dict[str, int]]:
    decoder = tensor_cases.randomized(parts)
    tokens, targets, _ = tensor_cases.batch()
    if layout == "context":
        split_sequence(decoder, context_mesh())
        part = SequencePart.from_mesh(context_mesh())
        tokens, targets = part.select_rows(tokens), part.select_rows(targets)
    elif layout in {"whole", "sliced"}:
        split_tensors(decoder, tensor_cases.tensor_mesh(), sequence_parallel=layout == "sliced")
    else:
        dispatch, overlap = cast("tuple[Dispatch, str]", layout.split())
        mesh = layout_mesh(Layout(expert=torch.distributed.get_world_size())).get_axis("expert")
        split_experts(decoder, mesh, dispatch=dispatch, overlap=int(overlap))
    checkpoint_activations(decoder, recompute)
    torch.manual_seed(7)
    loss = decoder.compute_loss(tokens, targets)
    if layout not in {"context", "whole", "sliced"}:
        loss = loss + auxiliary_terms(decoder)[0]
    with Operators(DEAR) as seen:
        torch.autograd.backward(loss)
    return [gather(gradient_of(one)) for one in decoder.parameters()], dict(seen.counts)


DROPS = tensor_cases.BLOOM._replace(dropout=0.1, attention_dropout=0.2)


CASES = {
    "whole": ("whole", Parts(qk_norm=tensor_cases.RMS_NORM)),
    "sliced": ("sliced", Parts()),
    "norms after": ("whole", NORMS_AFTER),
    "sliced, norms after": ("sliced", NORMS_AFTER._replace(bias=True, dropout=0.1)),
    "norm of each head": ("whole", HEAD_NORMS),
    "gated": ("sliced", GATED),
    "sinks": ("whole", SINKS),
    "whole, drops": ("whole", DROPS),
    "sliced, drops": ("sliced", DROPS),
    "context": ("context", Parts()),
    "context, slopes": ("context", Parts(positions=AlibiSpec())),
    "gathered": ("all_gather 1", mixture()),
    "gathered in parts": ("all_gather 2", mixture()._replace(dropout=0.1)),
    "exchanged": ("all_to_all 1", mixture()),
    "exchanged in parts": ("all_to_all 2", mixture()._replace(dropout=0.1)),
}


# Others with the same collectives run in `make test`.
LONG = ("norms after", "norm of each head", "gathered", "exchanged")


@pytest.mark.quick(*(case for case in CASES if case not in LONG))
@pytest.mark.parametrize(("layout", "parts"), CASES.values(), ids=CASES)
def test_selective_recomputation_repeats_no_collective_and_changes_no_gradient(
    two_ranks: Ranks, layout: str, parts: Parts
) -> None:
    for difference, called, again in two_ranks(compare_recomputation, parts, layout):
        assert difference == 0
        assert again == called


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["full", ["attention", "norms"], ["mlp"]], ids=str)
@pytest.mark.parametrize("layout", ["whole", "sliced"])
def test_recomputation_of_parts_changes_no_gradient(two_ranks, layout, recompute):
    for difference, _, _ in two_ranks(compare_recomputation, DROPS, layout, recompute):
        assert difference == 0
