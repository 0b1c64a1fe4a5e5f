"""The global norm and clipping are torch's, however the gradients are spread."""

import math

import pytest

from components.config.model_spec.positions import LearnedSpec
from tests.components.distributed.gradients_cases import (
    Clipped,
    leave_alone,
    norm_and_clip,
    spoil_one,
    unscaled,
)
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, LENGTH, Parts

# Double precision has 16 digits; gradients over tensor ranks lose the last three.
NORM_TOLERANCE = 1e-13
GRADIENT_TOLERANCE = 1e-11

TIED = Parts(
    num_kv_heads=8,
    bias=True,
    tied=True,
    positions=LearnedSpec(num_positions=LENGTH),
    mlp=GELU,
    norm=LAYER_NORM,
)
UNEVEN = TIED._replace(rows=61, mlp=GELU.model_copy(update={"ffn_dim": 5}))
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
    assert_as_torch(two_ranks(norm_and_clip, TIED, TWO[layout], 0.3))


@pytest.mark.parametrize("layout", ["tied ends", "zero 1", "zero 3"])
def test_uneven_rows_are_counted_once(two_ranks: Ranks, layout: str) -> None:
    assert_as_torch(two_ranks(norm_and_clip, UNEVEN, TWO[layout], 0.3))


@pytest.mark.parametrize("layout", FOUR)
def test_norm_and_clipping_on_four_ranks_are_torchs(four_ranks: Ranks, layout: str) -> None:
    assert_as_torch(four_ranks(norm_and_clip, TIED, FOUR[layout], 0.3))


@pytest.mark.parametrize("layout", ["tensor", "tied ends", "zero 1", "zero 3"])
def test_nan_on_one_rank_makes_the_norm_nan_on_all(two_ranks: Ranks, layout: str) -> None:
    norms = two_ranks(spoil_one, TIED, TWO[layout], 1, math.nan)
    assert all(math.isnan(norm) for norm in norms)


def test_an_overflow_on_one_rank_is_seen_by_all(four_ranks: Ranks) -> None:
    norms = four_ranks(spoil_one, TIED, FOUR["tied ends, tensor"], 2, math.inf)
    assert norms == [math.inf] * 4


def test_below_the_limit_no_bit_changes(two_ranks: Ranks) -> None:
    assert two_ranks(leave_alone, TIED, TWO["zero 1"]) == [True, True]


@pytest.mark.parametrize("layout", ["zero 1", "zero 3"])
def test_a_loss_scale_is_taken_out_of_every_gradient(two_ranks: Ranks, layout: str) -> None:
    assert two_ranks(unscaled, TIED, TWO[layout]) == [True, True]
