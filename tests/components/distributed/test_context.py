"""Context ranks with two chunks of every sequence equal one process."""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from components.attention_backends import BACKENDS
from components.config.model_spec.positions import RotarySpec
from components.distributed.context import (
    ContextCore,
    SequencePart,
    gather_sequence,
    mean_over_parts,
    split_sequence,
)
from components.distributed.tensor import split_tensors
from components.distributed.tensor_styles import stream_seed
from components.model.attention import AttentionContext, AttentionCore
from components.model.positions import PositionEncoding, alibi_slopes
from tests.components.distributed import tensor_cases
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts, assert_small, full
from tests.components.model.comparison import gradient_of
from tests.components.model.flex_on_cpu import flex_on_cpu
from tests.components.model.specs import RMS_NORM

CORE_LENGTH = 32
HEAD_DIM = 6


class Core(NamedTuple):
    """Settings of an attention core."""

    num_heads: int = 4
    num_kv_heads: int = 4
    slopes: bool = False
    documents: bool = False
    flex: bool = False
    window: int | None = None
    sinks: bool = False


@cache
def mesh_of(context: int, tensor: int) -> DeviceMesh:
    return init_device_mesh("cpu", (context, tensor), mesh_dim_names=("context", "tensor"))


def context_mesh() -> DeviceMesh:
    return mesh_of(torch.distributed.get_world_size(), 1)["context"]


def gathered_tokens() -> list[int]:
    """Select this rank's part of 0, 1, 2, ... and gather the whole sequence."""
    whole = torch.arange(CORE_LENGTH)
    part = SequencePart.from_mesh(context_mesh()).select_rows(whole[None]).double()
    again = gather_sequence(part[..., None], context_mesh().get_group())
    numbers: list[int] = again.flatten().long().tolist()
    return numbers


def mean_of_ranks() -> float:
    mine = torch.tensor(float(context_mesh().get_local_rank()))
    return mean_over_parts(mine, context_mesh()).item()


def seeds() -> tuple[int, int]:
    """Return the seed derived from 3 on this rank's axis and on an axis of one rank."""
    alone = mesh_of(torch.distributed.get_world_size(), 1)["tensor"]
    first, second = (
        stream_seed(3, mesh, sequence_parallel=mesh.size() > 1)
        for mesh in (context_mesh(), alone)
    )
    return first, second


def core_differences(core: Core) -> list[float]:
    """Compare outputs and the gradients of queries, keys and values."""
    *inputs, upstream = _drawn(core)
    part = SequencePart.from_mesh(context_mesh())
    plain = AttentionCore(dropout=0.0, backends=BACKENDS, has_sinks=core.sinks)
    places = part.position_ids(CORE_LENGTH // part.ranks, torch.device("cpu"))
    mine = [tensor[:, :, places] for tensor in (*inputs, upstream)]
    expected = _mixed_and_gradients(
        plain, inputs, upstream, _scope(core, torch.arange(CORE_LENGTH))
    )
    with flex_on_cpu() if core.flex else nullcontext():
        found = _mixed_and_gradients(
            ContextCore(plain, context_mesh()), mine[:3], mine[3], _scope(core, places)
        )
    return [
        tensor_cases.relative(one, other[:, :, places])
        for one, other in zip(found, expected, strict=True)
    ]


def _drawn(core: Core) -> list[Tensor]:
    """Draw whole queries, keys, values and output gradients."""
    generator = torch.Generator().manual_seed(5)
    counts = (core.num_heads, core.num_kv_heads, core.num_kv_heads, core.num_heads)
    return [
        torch.randn(2, count, CORE_LENGTH, HEAD_DIM, generator=generator, dtype=torch.float64)
        for count in counts
    ]


def _scope(core: Core, places: Tensor) -> AttentionContext:
    slopes = torch.tensor(alibi_slopes(core.num_heads)).double() if core.slopes else None
    ends = torch.zeros(2, CORE_LENGTH, dtype=torch.long)
    ends[0, 5], ends[0, 21], ends[1, 16] = 1, 1, 1
    encoding = PositionEncoding(position_ids=places, slopes=slopes)
    documents = ends.cumsum(1) if core.documents else None
    scope = AttentionContext(encoding=encoding, documents=documents, length=CORE_LENGTH)
    return scope.for_window(core.window)


def _mixed_and_gradients(
    core: AttentionCore, inputs: list[Tensor], upstream: Tensor, scope: AttentionContext
) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    sinks = torch.linspace(-1, 2, inputs[0].shape[1]) if core.has_sinks else None
    mixed = core(*leaves, scope, first_head=0, sinks=sinks)
    mixed.backward(upstream)
    return [mixed.detach(), *map(gradient_of, leaves)]


def dropped_fractions() -> list[float]:
    """Return the fractions of attention weights dropped in training and in evaluation."""
    core = ContextCore(AttentionCore(dropout=0.5, backends=BACKENDS), context_mesh())
    part = SequencePart.from_mesh(context_mesh())
    places = part.position_ids(CORE_LENGTH // part.ranks, torch.device("cpu"))
    scope = AttentionContext(encoding=PositionEncoding(position_ids=places), documents=None)
    zeros = torch.zeros(1, 1, len(places), CORE_LENGTH)
    unit = torch.eye(CORE_LENGTH)[places][None, None]
    torch.manual_seed(7)
    visible = int((places + 1).sum())
    return [
        1 - _kept(core.train(training)(zeros, zeros, unit, scope, first_head=0)) / visible
        for training in (True, False)
    ]


def _kept(mixed: Tensor) -> int:
    """Count nonzero weights; the values were the unit matrix."""
    return int((mixed != 0).sum())


def compare(
    parts: Parts, tensor: int, sequence_parallel: bool, documents: bool
) -> tensor_cases.Difference:
    """Train a decoder on two microbatches, whole and split over context and tensor ranks."""
    whole = tensor_cases.randomized(parts)
    split = copy.deepcopy(whole)
    mesh = mesh_of(torch.distributed.get_world_size() // tensor, tensor)
    split_sequence(split, mesh["context"])
    split_tensors(split, mesh["tensor"], sequence_parallel=sequence_parallel)
    part, losses = SequencePart.from_mesh(mesh["context"]), []
    for tokens, targets, numbers in _batches(documents):
        loss = split.compute_loss(
            part.select_rows(tokens), part.select_rows(targets), documents=numbers
        )
        torch.autograd.backward(loss)
        expected = whole.compute_loss(tokens, targets, documents=numbers)
        torch.autograd.backward(expected)
        found = mean_over_parts(loss.detach(), mesh["context"])
        losses.append(tensor_cases.relative(found, expected.detach()))
    found_gradients = {
        name: mean_over_parts(
            gradient_of(weight) if tensor == 1 else full(weight.grad), mesh["context"]
        )
        for name, weight in split.named_parameters()
    }
    return tensor_cases.Difference(max(losses), *tensor_cases.worst(whole, found_gradients))


def _batches(documents: bool) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for seed in (1, 2):
        tokens, targets, numbers = tensor_cases.batch(seed=seed)
        yield tokens, targets, numbers if documents else None


CPU = torch.device("cpu")
CORES = {
    "multi-head": Core(),
    "grouped": Core(num_kv_heads=2),
    "one group": Core(num_kv_heads=1),
    "slopes": Core(slopes=True),
    "documents": Core(documents=True),
    "grouped, slopes, documents": Core(num_kv_heads=2, slopes=True, documents=True),
    # Longer than a rank's own part, shorter than the sequence.
    "window": Core(window=CORE_LENGTH - 3),
    "sinks": Core(num_kv_heads=2, sinks=True),
    "window, sinks": Core(window=3, sinks=True),
    "narrow window, slopes, documents": Core(window=3, slopes=True, documents=True),
}
LLAMA = Parts(z_loss=0.1)
# A window, none, and one longer than a rank's part; windowed layers have a local base.
WINDOWED = Parts(
    positions=RotarySpec(base=10_000.0, local_base=100.0),
    windows=(5, "full", tensor_cases.LENGTH - 2),
    num_layers=3,
)
GATED = Parts(
    positions=RotarySpec(base=10_000.0, rotary_fraction=0.6, local_base=100.0),
    windows=(5, "full"),
    output_gate=True,
)
MODELS = {
    "llama": LLAMA,
    "bloom": tensor_cases.BLOOM,
    "learned": tensor_cases.GPT,
    "windowed": WINDOWED,
    "latent": Parts(attention=tensor_cases.LATENT),
    "gemma 3": tensor_cases.GEMMA3,
    "hybrid": tensor_cases.HYBRID,
    "gated": GATED,
    "sinks": Parts(num_kv_heads=2, windows=(5, "full"), sinks=True),
}


def parts(ranks: int) -> list[SequencePart]:
    return [SequencePart(rank=rank, ranks=ranks) for rank in range(ranks)]


def test_a_rank_holds_a_chunk_and_its_mirror_image() -> None:
    assert [part.chunk_numbers for part in parts(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    places = SequencePart(rank=1, ranks=4).position_ids(4, CPU)
    assert places.tolist() == [2, 3, 12, 13]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ranks_divide_positions_and_see_equally_many_keys(ranks: int) -> None:
    length = 6 * ranks
    held = [part.position_ids(6, CPU) for part in parts(ranks)]
    assert torch.cat(held).sort().values.tolist() == list(range(length))
    visible = {int((places + 1).sum()) for places in held}
    assert visible == {length * (length + 1) // 2 // ranks}
    rows = torch.arange(3 * length).view(3, -1)
    for part, places in zip(parts(ranks), held, strict=True):
        assert torch.equal(part.select_rows(rows), rows[:, places])


def test_a_single_rank_takes_the_whole_sequence() -> None:
    rows = torch.arange(14).view(2, 7)
    assert SequencePart(rank=0, ranks=1).select_rows(rows) is rows


def test_gathered_parts_are_in_sequence_order(two_ranks: Ranks, four_ranks: Ranks) -> None:
    for ranks in (two_ranks, four_ranks):
        assert all(found == list(range(CORE_LENGTH)) for found in ranks(gathered_tokens))


def test_figures_are_averaged_over_the_parts(four_ranks: Ranks) -> None:
    assert four_ranks(mean_of_ranks) == [1.5] * 4


# Flex attention is compiled on every rank.
@pytest.mark.quick(
    *(f"{core}-dense-{ranks}_ranks" for core in CORES for ranks in ("two", "four")),
    *("window, sinks-flex-two_ranks", "grouped, slopes, documents-flex-two_ranks"),
    "one group-flex-four_ranks",
)
@pytest.mark.parametrize("ranks", ["two_ranks", "four_ranks"])
@pytest.mark.parametrize("flex", [False, True], ids=["dense", "flex"])
@pytest.mark.parametrize("core", CORES)
def test_outputs_and_gradients_of_each_rank_equal_attention_over_the_whole_sequence(
    request: pytest.FixtureRequest, core: str, flex: bool, ranks: str
) -> None:
    run_ranks: Ranks = request.getfixturevalue(ranks)
    for differences in run_ranks(core_differences, CORES[core]._replace(flex=flex)):
        assert max(differences) < tensor_cases.LOSS_TOLERANCE


def test_half_of_the_weights_are_dropped_in_training_and_none_in_evaluation(two_ranks):
    for training, evaluation in two_ranks(dropped_fractions):
        assert 0.4 < training < 0.6
        assert evaluation == 0


def test_each_rank_has_its_own_dropout_seed(four_ranks: Ranks) -> None:
    found, alone = zip(*four_ranks(seeds), strict=True)
    assert len({3, *found}) == 5
    assert alone == (3, 3, 3, 3)


@pytest.mark.parametrize("documents", [False, True], ids=["crossing", "documents"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_decoder_on_two_ranks_equals_one_process(two_ranks, model, documents):
    assert_small(two_ranks(compare, model, 1, False, documents))


@pytest.mark.quick("sliced-llama", "whole-bloom", "sliced-windowed")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sliced"])
def test_tensor_ranks_split_what_a_context_rank_holds(four_ranks, model, sequence_parallel):
    assert_small(four_ranks(compare, model, 2, sequence_parallel, True))


@pytest.mark.parametrize(
    ("model", "documents"),
    [(LLAMA._replace(qk_norm=RMS_NORM), False), (tensor_cases.HYBRID, True)],
    ids=["norms of queries and keys", "linear mixers"],
)
def test_a_decoder_on_four_ranks_equals_one_process(four_ranks, model, documents):
    assert_small(four_ranks(compare, model, 1, False, documents))
