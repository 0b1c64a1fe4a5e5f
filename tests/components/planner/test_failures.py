"""Failures and the best interval between checkpoints, by hand and against drawn failures."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.planner.interruptions import (
    best_interval,
    expected_failures,
    mean_seconds_between,
)

HOUR = 3_600.0
hours = st.floats(0.1, 10.0).map(lambda count: count * HOUR)


def test_48_nodes_of_bloom_s_lose_a_device_a_week() -> None:
    assert mean_seconds_between(8_064.0, 48) == 168 * HOUR
    assert mean_seconds_between(8_064.0, 96) == 84 * HOUR


def test_young_s_interval_of_bloom_s_published_figures() -> None:
    """sqrt(2 x 40 s x one week) is 1.9 h; BLOOM chose 100 steps of 105 s, 2.9 h."""
    best = best_interval(stall=40.0, between=168 * HOUR)
    assert best == pytest.approx(6_956, abs=1)
    assert 100 * 105 / best == pytest.approx(1.5, abs=0.02)


def test_bloom_s_failures_lose_what_its_chronicle_says() -> None:
    """An hour and a half each on average, three hours at most: half of 100 steps, and all."""
    lost = expected_failures(work=HOUR, interval=10_500.0, restart=0.0, between=168 * HOUR)
    assert lost is not None
    assert lost.each_seconds is not None
    assert lost.each_seconds / HOUR == pytest.approx(1.5, abs=0.05)


def test_the_best_interval_loses_least_of_its_neighbours() -> None:
    stall, between, work = 60.0, 48 * HOUR, 1_000 * HOUR

    def cost(interval: float) -> float:
        stalls = work / interval * stall
        lost = expected_failures(work=work, interval=interval, restart=0.0, between=between)
        assert lost is not None
        return stalls + lost.total_seconds

    best = best_interval(stall=stall, between=between)
    assert cost(best) < min(cost(best * 0.8), cost(best * 1.25))


def test_failures_drawn_at_random_cost_what_is_expected() -> None:
    """Drawn from the exponential distribution that a constant rate has, in a run of a year."""
    between, interval, restart, work = 100 * HOUR, 2 * HOUR, 0.5 * HOUR, 365 * 24 * HOUR
    drawn, total, saved = Random(7), 0.0, 0.0
    runs = 200
    for _ in range(runs):
        saved, next_failure = 0.0, drawn.expovariate(1 / between)
        clock = 0.0
        while saved < work:
            if clock + interval <= next_failure:
                clock, saved = clock + interval, saved + interval
            else:
                clock = next_failure + restart
                next_failure = clock + drawn.expovariate(1 / between)
        total += clock
    lost = expected_failures(work=work, interval=interval, restart=restart, between=between)
    assert lost is not None
    assert total / runs == pytest.approx(work + lost.total_seconds, rel=0.003)


@given(interval=hours, restart=hours, between=st.floats(30.0, 1e4).map(lambda h: h * HOUR))
def test_rarer_checkpoints_and_slower_restarts_lose_more_and_rarer_failures_less(
    interval: float, restart: float, between: float
) -> None:
    def lost(interval: float, restart: float, between: float) -> float:
        failures = expected_failures(
            work=1e6, interval=interval, restart=restart, between=between
        )
        assert failures is not None
        return failures.total_seconds

    before = lost(interval, restart, between)
    assert lost(interval * 1.2, restart, between) > before
    assert lost(interval, restart * 1.2, between) > before
    assert lost(interval, restart, between * 1.2) < before


def test_a_run_whose_failures_cost_more_than_their_distance_has_no_end() -> None:
    assert expected_failures(work=1.0, interval=2.0, restart=1.0, between=2.0) is None
    assert expected_failures(work=1.0, interval=2.0, restart=0.9, between=2.0) is not None
