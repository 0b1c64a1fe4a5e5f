"""The global norm and clipping are torch's, however the gradients are spread."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from components.distributed.mesh import sum_over_ranks
from components.distributed.weight_shards import clip_gradients, squared_norm, unscale_gradients
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, GPT, Parts, randomized


class Clipped(NamedTuple):
    """Relative differences of the norm, and of the gradients after clipping."""

    norm: float
    gradient: float


def norm_of(sharded: ParallelModel) -> Tensor:
    """Sum the shares of all ranks, as a step does."""
    return sum_over_ranks(squared_norm(sharded.shards)).sqrt()


def norm_and_clip(parts: Parts, layout: Layout, part_of_norm: float) -> Clipped:
    """Clip to a part of the norm, which torch takes over one process's gradients."""
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
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
        largest_difference(sharded.gradients(), whole.gradients()),
    )


def spoil_one(parts: Parts, layout: Layout, rank: int, value: float) -> float:
    """Return the norm where one number of one rank's gradients is no number."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    if torch.distributed.get_rank() == rank:
        gradient = sharded.shards[3].parameter.grad
        assert gradient is not None
        gradient.view(-1)[0] = value
    return norm_of(sharded).item()


def leave_alone(parts: Parts, layout: Layout) -> bool:
    """Say whether no limit, and a limit that no norm reaches, change no bit."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    before = sharded.gradients()
    for limit in (math.inf, 1e6):
        clip_gradients(sharded.shards, norm_of(sharded), limit)
    return all(torch.equal(before[name], after) for name, after in sharded.gradients().items())


def unscaled(parts: Parts, layout: Layout) -> bool:
    """Say whether a scale of a power of two is taken out without a trace."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    before = sharded.gradients()
    unscale_gradients(sharded.shards, 2.0**16)
    after = sharded.gradients()
    return all(torch.equal(before[name], after[name] * 2.0**16) for name in before)


# Double precision has 16 digits; gradients over tensor ranks lose the last three.
NORM_TOLERANCE = 1e-13
GRADIENT_TOLERANCE = 1e-11

UNEVEN = GPT._replace(rows=61, mlp=GELU.model_copy(update={"ffn_dim": 5}))
TWO = {
    "tensor": Layout(tensor=2),
    "sliced tensor": Layout(tensor=2, sequence_parallel=True),
    "tied ends": Layout(pipeline=2),
    "zero 1": Layout(shard=2, zero=1),
    "zero 3": Layout(shard=2, zero=3),
}
FOUR = {
    "tensor, zero 1": Layout(tensor=2, shard=2, zero=1),
    "tensor, zero 3": Layout(tensor=2, shard=2, zero=3),
    "tied ends, tensor": Layout(pipeline=2, tensor=2),
    "tied ends, zero 2": Layout(pipeline=2, shard=2, zero=2),
    "replicas, zero 3": Layout(replicate=2, shard=2, zero=3),
}


def assert_as_torch(found: list[Clipped]) -> None:
    for clipped in found:
        assert clipped.norm < NORM_TOLERANCE
        assert clipped.gradient < GRADIENT_TOLERANCE


@pytest.mark.parametrize("layout", TWO)
def test_norm_and_clipping_on_two_ranks_are_torchs(two_ranks: Ranks, layout: str) -> None:
    assert_as_torch(two_ranks(norm_and_clip, GPT, TWO[layout], 0.3))


@pytest.mark.parametrize("layout", ["tied ends", "zero 1", "zero 3"])
def test_uneven_rows_are_counted_once(two_ranks: Ranks, layout: str) -> None:
    assert_as_torch(two_ranks(norm_and_clip, UNEVEN, TWO[layout], 0.3))


@pytest.mark.parametrize("layout", FOUR)
def test_norm_and_clipping_on_four_ranks_are_torchs(four_ranks: Ranks, layout: str) -> None:
    assert_as_torch(four_ranks(norm_and_clip, GPT, FOUR[layout], 0.3))


@pytest.mark.parametrize("layout", ["tensor", "tied ends", "zero 1", "zero 3"])
def test_nan_on_one_rank_makes_the_norm_nan_on_all(two_ranks: Ranks, layout: str) -> None:
    norms = two_ranks(spoil_one, GPT, TWO[layout], 1, math.nan)
    assert all(math.isnan(norm) for norm in norms)


def test_an_overflow_on_one_rank_is_seen_by_all(four_ranks: Ranks) -> None:
    norms = four_ranks(spoil_one, GPT, FOUR["tied ends, tensor"], 2, math.inf)
    assert norms == [math.inf] * 4


def test_below_the_limit_no_bit_changes(two_ranks: Ranks) -> None:
    assert two_ranks(leave_alone, GPT, TWO["zero 1"]) == [True, True]


@pytest.mark.parametrize("layout", ["zero 1", "zero 3"])
def test_a_loss_scale_is_taken_out_of_every_gradient(two_ranks: Ranks, layout: str) -> None:
    assert two_ranks(unscaled, GPT, TWO[layout]) == [True, True]
