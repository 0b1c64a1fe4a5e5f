"""Sums of what was counted, and what they say of power and of what was not counted."""

import json

import pytest

from components.energy.counters import NOTHING, EnergyReading

HOUR = 3_600.0
FOUR = EnergyReading(joules=4 * 300.0 * HOUR, counted_seconds=4 * HOUR, passed_seconds=4 * HOUR)
UNCOUNTED = EnergyReading(joules=0.0, counted_seconds=0.0, passed_seconds=4 * HOUR)


def test_four_devices_of_300_watts_take_1_2_kwh_in_an_hour() -> None:
    assert FOUR.energy_kwh == pytest.approx(1.2)
    assert (FOUR.mean_watts, FOUR.counted_fraction) == (300.0, 1.0)
    assert FOUR.is_whole


def test_uncounted_time_leaves_power_as_it_is_and_the_sum_a_part() -> None:
    both = FOUR + UNCOUNTED
    assert (both.mean_watts, both.counted_fraction) == (300.0, 0.5)
    assert not both.is_whole


def test_what_nothing_counted_is_null_and_not_0() -> None:
    assert UNCOUNTED.as_json()["joules"] is None
    assert (UNCOUNTED.mean_watts, UNCOUNTED.energy_kwh, NOTHING.counted_fraction) == (
        None,
        None,
        0.0,
    )
    assert not NOTHING.is_whole


@pytest.mark.parametrize("counted", [FOUR, UNCOUNTED, NOTHING, FOUR + UNCOUNTED])
def test_it_comes_back_from_a_line_of_the_journal(counted: EnergyReading) -> None:
    assert EnergyReading.from_json(json.loads(json.dumps(counted.as_json()))) == counted
