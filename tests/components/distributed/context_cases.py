"""What every context rank does in the tests: its part of a computation beside the whole."""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from components.attention_backends import BACKENDS
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
from tests.components.distributed.tensor_cases import (
    Difference,
    Parts,
    batch,
    full,
    randomized,
    relative,
    worst,
)
from tests.components.model.comparison import gradient_of
from tests.components.model.flex_on_cpu import flex_on_cpu

CORE_LENGTH = 32
HEAD_DIM = 6


class Core(NamedTuple):
    """Choose what an attention core computes on."""

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
    """Take this rank's part of 0, 1, 2, ... and gather it again."""
    whole = torch.arange(CORE_LENGTH)
    part = SequencePart.from_mesh(context_mesh()).select_rows(whole[None]).double()
    again = gather_sequence(part[..., None], context_mesh().get_group())
    numbers: list[int] = again.flatten().long().tolist()
    return numbers


def mean_of_ranks() -> float:
    """Average the ranks' numbers."""
    mine = torch.tensor(float(context_mesh().get_local_rank()))
    return mean_over_parts(mine, context_mesh()).item()


def seeds() -> tuple[int, int]:
    """Return what 3 becomes on this rank of the axis, and on an axis of one rank."""
    alone = mesh_of(torch.distributed.get_world_size(), 1)["tensor"]
    first, second = (
        stream_seed(3, mesh, sequence_parallel=mesh.size() > 1)
        for mesh in (context_mesh(), alone)
    )
    return first, second


def core_differences(core: Core) -> list[float]:
    """Compare what comes out, and the gradients of queries, keys and values."""
    *inputs, upstream = _drawn(core)
    part, plain = (
        SequencePart.from_mesh(context_mesh()),
        AttentionCore(dropout=0.0, backends=BACKENDS, has_sinks=core.sinks),
    )
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
        relative(one, other[:, :, places]) for one, other in zip(found, expected, strict=True)
    ]


def _drawn(core: Core) -> list[Tensor]:
    """Draw queries, keys, values, and the gradient of what comes out, all of them whole."""
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
    """Return the fraction of equal weights that training drops, and that evaluation does."""
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
    """Count the weights that are not 0: the values were the unit matrix."""
    return int((mixed != 0).sum())


def compare(parts: Parts, tensor: int, sequence_parallel: bool, documents: bool) -> Difference:
    """Train a decoder on two microbatches, whole and split over context and tensor ranks."""
    whole = randomized(parts)
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
        losses.append(relative(found, expected.detach()))
    found_gradients = {
        name: mean_over_parts(
            gradient_of(weight) if tensor == 1 else full(weight.grad), mesh["context"]
        )
        for name, weight in split.named_parameters()
    }
    return Difference(max(losses), *worst(whole, found_gradients))


def _batches(documents: bool) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for seed in (1, 2):
        tokens, targets, numbers = batch(seed=seed)
        yield tokens, targets, numbers if documents else None
