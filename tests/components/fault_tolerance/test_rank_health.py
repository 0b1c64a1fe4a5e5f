"""Figures and weights of all ranks: who is slow or grows, and whose weights differ."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from components.fault_tolerance import rank_health
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, Parts
from tests.components.fault_tolerance.rank_health_cases import compared, told

GIB = 2.0**30
PARTS = Parts(mlp=GELU, norm=LAYER_NORM)
DEGREES = Layout(tensor=2, shard=2, zero=1)
SHARDED = Layout(replicate=2, shard=2, zero=3)
NORM, MATRIX = "layers.0.mlp_norm.weight", "layers.0.mlp.down.weight"


@given(
    usual=st.floats(0.01, 100),
    noise=st.lists(st.floats(0.9, 1.1), min_size=5, max_size=40),
    slow=st.sets(st.integers(0, 4), max_size=2),
)
def test_slow_ranks_are_found(usual, noise: list[float], slow: set[int]) -> None:
    seconds = [usual * factor * (2 if rank in slow else 1) for rank, factor in enumerate(noise)]
    found = rank_health.slow_ranks(seconds, [0] * len(seconds), ratio=1.5)
    assert {one.rank for one in found} == slow
    middle = np.sort(seconds)[(len(seconds) - 1) // 2]
    for one in found:
        assert one.ratio == pytest.approx(seconds[one.rank] / middle)


def test_ranks_of_a_stage_are_compared_if_they_compute_anything() -> None:
    # Of two the faster one is the measure; a stage with more work is not slow.
    (found,) = rank_health.slow_ranks([1.0, 3.0], ["stage 0"] * 2, ratio=1.5)
    assert (found.rank, found.seconds, found.ratio) == (1, 3.0, 3.0)
    assert rank_health.slow_ranks([1.0, 1.0, 3.0, 3.1], [0, 0, 1, 1], ratio=1.5) == []
    assert rank_health.slow_ranks([0.0, 0.0, 1.0], [0, 0, 0], ratio=1.5) == []


def look(growth: rank_health.Growth, looks: list[list[float]]) -> list[dict[int, float]]:
    return [growth.find_growth([each * GIB for each in ranks]) for ranks in looks]


def test_growing_memory_is_reported_once_for_each_growth() -> None:
    growth = rank_health.Growth(fraction=0.2)
    said = look(growth, [[1.0, 4.0 * 1.03**turn] for turn in range(24)])
    told = [(turn, ranks) for turn, ranks in enumerate(said) if ranks]
    assert [list(ranks) for _, ranks in told] == [[1], [1]]
    assert all(ranks[1] >= 0.2 for _, ranks in told)
    # Medians of five looks, seven looks apart at the least: 1.03 ** 7 = 1.23.
    assert [turn for turn, _ in told] == [11, 18]


def test_memory_of_one_evaluation_is_not_growth() -> None:
    growth = rank_health.Growth(fraction=0.2)
    assert not any(look(growth, [[3.0 if turn in {6, 7} else 1.0] for turn in range(20)]))


def test_energy_travels_with_the_figures_of_the_ranks(four_ranks, tmp_path: Path) -> None:
    for first, second, third in four_ranks(told, tmp_path):
        assert first is third is None
        assert second.seconds == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert min(second.memory_bytes) > 2**20
        devices, hosts = second.energy
        assert devices.joules == pytest.approx(2 * (0 + 1 + 2))
        # Three of four devices have counters, and ranks tell within moments of each other.
        assert devices.counted_fraction == pytest.approx(3 / 4, rel=1e-3)
        assert (hosts.joules, hosts.counted_seconds) == (0, 0)
        assert hosts.passed_seconds == pytest.approx(devices.passed_seconds / 4, rel=1e-3)


def everyones(
    answers: list[list[rank_health.ReplicaDifference]],
) -> set[tuple[str, tuple[int, ...]]]:
    return {(one.weight, one.ranks) for answer in answers for one in answer}


@pytest.mark.parametrize(
    ("layout", "flips", "found"),
    [
        (DEGREES, (), set()),
        (SHARDED, (), set()),
        (Layout(pipeline=2, shard=2, zero=2), (), set()),
        # Drift of a norm over tensor ranks, as BLOOM met it; of two nobody is the majority.
        (DEGREES, ((NORM, 1), (NORM, 3)), {(NORM, (0, 1)), (NORM, (2, 3))}),
        (Layout(tensor=4), ((NORM, 2),), {(NORM, (2,))}),
        (Layout(replicate=4), ((MATRIX, 3),), {(MATRIX, (3,))}),
        (DEGREES, ((MATRIX, 2),), {(MATRIX, (0, 2))}),
        (SHARDED, ((MATRIX, 2),), {(MATRIX, (0, 2))}),
        (Layout(shard=4, zero=2), ((NORM, 0), (MATRIX, 1)), {(NORM, (0,)), (MATRIX, (1,))}),
    ],
)
def test_a_flipped_bit_is_found_where_ranks_share_the_weight(four_ranks, layout, flips, found):
    assert everyones(four_ranks(compared, PARTS, layout, flips)) == found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_bit_counts(dtype: torch.dtype) -> None:
    numbers = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    before, width = rank_health.bit_sum(numbers), 8 * numbers.element_size()
    for bit in range(width):
        flipped = numbers.clone()
        flipped.view(kinds[width // 8])[3, 2] ^= 1 << bit if bit < width - 1 else -(1 << bit)
        assert rank_health.bit_sum(flipped) != before
    assert rank_health.bit_sum(numbers.t()) == before


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([7, 7, 9, 7], [2]), ([7, 9], [0, 1]), ([1, 1, 2, 2], [0, 1, 2, 3]),
        ([5, 6, 5, 8], [1, 3]),
    ],
)  # fmt: skip
def test_the_minority_is_named_or_all_of_a_tie(values: list[int], places: list[int]) -> None:
    assert rank_health.find_minority(values) == places
