"""The global norm and clipping equal torch's for all layouts."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from components.distributed.mesh import sum_over_ranks
from components.distributed.weight_shards import clip_gradients, squared_norm, unscale_gradients
from tests.components.distributed import layout_cases
from tests.components.distributed.layout_cases import Layout, ParallelModel, batch_of
from tests.components.distributed.tensor_cases import GELU, GPT, Parts, randomized


class Clipped(NamedTuple):
    """Relative differences of the norm and of the clipped gradients."""

    norm: float
    gradient: float


def norm_of(sharded: ParallelModel) -> Tensor:
    """Sum the squares of all ranks like a training step."""
    return sum_over_ranks(squared_norm(sharded.shards)).sqrt()


def norm_and_clip(parts: Parts, layout: Layout, part_of_norm: float) -> Clipped:
    """Clip to a fraction of the norm, with torch on one process as the reference."""
    model = randomized(parts)
    whole, sharded = layout_cases.Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, rank) for rank in range(layout.data)]
    whole.backward(batches)
    sharded.backward(batches[sharded.mesh.data_rank])
    norm = norm_of(sharded)
    assert norm.dtype == torch.float64
    limit = part_of_norm * norm.item()
    expected = torch.nn.utils.clip_grad_norm_(whole.decoder.parameters(), limit)
    clip_gradients(sharded.shards, norm, limit)
    return Clipped(
        abs(norm - expected).item() / expected.item(),
        layout_cases.largest_difference(sharded.gradients(), whole.gradients()),
    )


def spoil_one(parts: Parts, layout: Layout, rank: int, value: float) -> float:
    """Return the norm after one gradient of one rank was set to ``value``."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    if torch.distributed.get_rank() == rank:
        gradient = sharded.shards[3].parameter.grad
        assert gradient is not None
        gradient.view(-1)[0] = value
    return norm_of(sharded).item()


def change_nothing(parts: Parts, layout: Layout) -> tuple[bool, bool]:
    """Return whether high limits and a power of two as loss scale change no bit."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    before = sharded.gradients()
    for limit in (math.inf, 1e6):
        clip_gradients(sharded.shards, norm_of(sharded), limit)
    clipped = sharded.gradients()
    unscale_gradients(sharded.shards, 2.0**16)
    unscaled = {name: gradient * 2.0**16 for name, gradient in sharded.gradients().items()}
    return same_bits(before, clipped), same_bits(before, unscaled)


def same_bits(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return all(map(torch.equal, before.values(), after.values()))


# Double precision has 16 digits; gradients over tensor ranks lose the last three.
NORM_TOLERANCE = 1e-13
GRADIENT_TOLERANCE = 1e-11

UNEVEN = GPT._replace(rows=61, mlp=GELU.model_copy(update={"ffn_dim": 5}))
LAYOUTS = {
    "tensor": Layout(tensor=2),
    "sliced tensor": Layout(tensor=2, sequence_parallel=True),
    "tied ends": Layout(pipeline=2),
    "zero 1": Layout(shard=2, zero=1),
    "zero 3": Layout(shard=2, zero=3),
    "tensor, zero 1": Layout(tensor=2, shard=2, zero=1),
    "tensor, zero 3": Layout(tensor=2, shard=2, zero=3),
    "sliced tensor, zero 3": Layout(tensor=2, shard=2, zero=3, sequence_parallel=True),
    "tied ends, tensor": Layout(pipeline=2, tensor=2),
    "tied ends, zero 2": Layout(pipeline=2, shard=2, zero=2),
    "replicas, zero 3": Layout(replicate=2, shard=2, zero=3),
}
CASES = {name: (GPT, layout) for name, layout in LAYOUTS.items()}
CASES |= {f"uneven, {one}": (UNEVEN, LAYOUTS[one]) for one in ("tied ends", "zero 1", "zero 3")}


@pytest.mark.quick(
    *("sliced tensor", "uneven, tied ends", "uneven, zero 1", "uneven, zero 3"),
    *("sliced tensor, zero 3", "replicas, zero 3"),
)
@pytest.mark.parametrize("case", CASES)
def test_norm_and_clipping_equal_torch(run_layout: Callable[..., Any], case: str) -> None:
    for clipped in run_layout(norm_and_clip, *CASES[case], 0.3):
        assert clipped.norm < NORM_TOLERANCE
        assert clipped.gradient < GRADIENT_TOLERANCE


@pytest.mark.parametrize(
    ("layout", "rank", "value"),
    [
        *((one, 1, math.nan) for one in ("tensor", "tied ends", "zero 1", "zero 3")),
        ("tied ends, tensor", 2, math.inf),
    ],
)
def test_nan_or_overflow_on_one_rank_reaches_the_norm_of_all_ranks(
    run_layout: Callable[..., Any], layout: str, rank: int, value: float
) -> None:
    for norm in run_layout(spoil_one, GPT, LAYOUTS[layout], rank, value):
        assert norm == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize("layout", ["zero 1", "zero 3"])
def test_unclipped_and_unscaled_gradients_keep_their_bits(run_layout, layout):
    assert run_layout(change_nothing, GPT, LAYOUTS[layout]) == [(True, True)] * 2
