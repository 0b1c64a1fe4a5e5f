"""Weights that ranks share: one flipped bit is found, and on which rank, in every layout."""

import pytest
import torch

from components.fault_tolerance.rank_health import ReplicaDifference, bit_sum, find_minority
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, Parts
from tests.components.fault_tolerance.replicas_cases import compared

PARTS = Parts(mlp=GELU, norm=LAYER_NORM)
NORM, MATRIX = "layers.0.mlp_norm.weight", "layers.0.mlp.down.weight"


def everyones(answers: list[list[ReplicaDifference]]) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.weight, one.ranks) for answer in answers for one in answer}


@pytest.mark.parametrize(
    ("layout", "flips", "found"),
    [
        (Layout(tensor=2, shard=2, zero=1), (), set()),
        (Layout(replicate=2, shard=2, zero=3), (), set()),
        (Layout(pipeline=2, shard=2, zero=2), (), set()),
        # Drift of a norm over tensor ranks, as BLOOM met it; of two nobody is the majority.
        (
            Layout(tensor=2, shard=2, zero=1),
            ((NORM, 1), (NORM, 3)),
            {(NORM, (0, 1)), (NORM, (2, 3))},
        ),
        (Layout(tensor=4), ((NORM, 2),), {(NORM, (2,))}),
        (Layout(replicate=4), ((MATRIX, 3),), {(MATRIX, (3,))}),
        (Layout(tensor=2, shard=2, zero=1), ((MATRIX, 2),), {(MATRIX, (0, 2))}),
        (Layout(replicate=2, shard=2, zero=3), ((MATRIX, 2),), {(MATRIX, (0, 2))}),
        (Layout(shard=4, zero=2), ((NORM, 0), (MATRIX, 1)), {(NORM, (0,)), (MATRIX, (1,))}),
    ],
)
def test_a_flipped_bit_is_found_where_ranks_share_the_weight(
    four_ranks: Ranks,
    layout: Layout,
    flips: tuple[tuple[str, int], ...],
    found: set[tuple[str, tuple[int, ...]]],
) -> None:
    assert everyones(four_ranks(compared, PARTS, layout, flips)) == found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_bit_counts(dtype: torch.dtype) -> None:
    numbers = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    before, width = bit_sum(numbers), 8 * numbers.element_size()
    for bit in range(width):
        flipped = numbers.clone()
        flipped.view(kinds[width // 8])[3, 2] ^= 1 << bit if bit < width - 1 else -(1 << bit)
        assert bit_sum(flipped) != before
    assert bit_sum(numbers.t()) == before


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([7, 7, 9, 7], [2]),
        ([7, 9], [0, 1]),
        ([1, 1, 2, 2], [0, 1, 2, 3]),
        ([5, 6, 5, 8], [1, 3]),
    ],
)
def test_the_fewer_are_named_and_all_where_there_is_no_majority(
    values: list[int], places: list[int]
) -> None:
    assert find_minority(values) == places
