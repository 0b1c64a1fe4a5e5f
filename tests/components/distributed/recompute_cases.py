"""Selective recomputation beside none, in layouts whose collectives it must keep."""

from typing import Any, cast

import torch
from torch import Tensor

from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.context import SequencePart, split_sequence
from components.distributed.experts import Dispatch, split_experts
from components.distributed.tensor import split_tensors
from tests.components.distributed.context_cases import context_mesh
from tests.components.distributed.layout_cases import Layout, gather, layout_mesh
from tests.components.distributed.tensor_cases import (
    Parts,
    batch,
    randomized,
    tensor_mesh,
)
from tests.components.model.comparison import gradient_of
from tests.components.model.operators_seen import DEAR, Operators
from tests.components.model.routing_terms import auxiliary_terms

Gradients = tuple[list[Tensor], dict[str, int]]
Found = tuple[float, dict[str, int], dict[str, int]]


def recompute_beside_none(parts: Parts, layout: str) -> Found:
    """Return the largest difference of a gradient, and what both backward passes call."""
    passes = [_gradients(parts, layout, recompute) for recompute in ("none", "selective")]
    (plain, called), (thrifty, again) = passes
    differences = ((a - b).abs().max().item() for a, b in zip(plain, thrifty, strict=True))
    return max(differences), called, again


def _gradients(
    parts: Parts, layout: str, recompute: Any
) -> tuple[list[Tensor], dict[str, int]]:
    decoder = randomized(parts)
    tokens, targets, _ = batch()
    if layout == "context":
        split_sequence(decoder, context_mesh())
        part = SequencePart.from_mesh(context_mesh())
        tokens, targets = part.select_rows(tokens), part.select_rows(targets)
    elif layout in {"whole", "sliced"}:
        split_tensors(decoder, tensor_mesh(), sequence_parallel=layout == "sliced")
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
