"""Who is slow and whose memory grows, told from figures of all ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.fault_tolerance.rank_health import Growth, slow_ranks

GIB = 2.0**30


@given(
    usual=st.floats(0.01, 100),
    noise=st.lists(st.floats(0.9, 1.1), min_size=5, max_size=40),
    slow=st.sets(st.integers(0, 4), max_size=2),
)
def test_slow_ranks_are_found_among_less_than_half_of_all(
    usual: float, noise: list[float], slow: set[int]
) -> None:
    seconds = [usual * factor * (2 if rank in slow else 1) for rank, factor in enumerate(noise)]
    found = slow_ranks(seconds, [0] * len(seconds), ratio=1.5)
    assert {one.rank for one in found} == slow
    middle = np.sort(seconds)[(len(seconds) - 1) // 2]
    for one in found:
        assert one.ratio == pytest.approx(seconds[one.rank] / middle)


def test_of_two_the_faster_one_is_the_measure() -> None:
    (found,) = slow_ranks([1.0, 3.0], ["stage 0"] * 2, ratio=1.5)
    assert (found.rank, found.seconds, found.ratio) == (1, 3.0, 3.0)


def test_a_stage_with_more_work_is_not_slow() -> None:
    assert slow_ranks([1.0, 1.0, 3.0, 3.1], [0, 0, 1, 1], ratio=1.5) == []


def test_ranks_that_compute_nothing_are_not_compared() -> None:
    assert slow_ranks([0.0, 0.0, 1.0], [0, 0, 0], ratio=1.5) == []


def look(growth: Growth, looks: list[list[float]]) -> list[dict[int, float]]:
    return [growth.find_growth([each * GIB for each in ranks]) for ranks in looks]


def test_memory_that_grows_is_said_once_for_each_growth() -> None:
    growth = Growth(fraction=0.2)
    said = look(growth, [[1.0, 4.0 * 1.03**turn] for turn in range(24)])
    told = [(turn, ranks) for turn, ranks in enumerate(said) if ranks]
    assert [list(ranks) for _, ranks in told] == [[1], [1]]
    assert all(ranks[1] >= 0.2 for _, ranks in told)
    # Medians of five looks, seven looks apart at the least: 1.03 ** 7 = 1.23.
    assert [turn for turn, _ in told] == [11, 18]


def test_one_evaluation_is_no_growth() -> None:
    growth = Growth(fraction=0.2)
    assert not any(look(growth, [[3.0 if turn in {6, 7} else 1.0] for turn in range(20)]))
