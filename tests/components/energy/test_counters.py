"""Joules add up over any number of wraps, and what is not known is left out with its time."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.energy import counters
from components.energy.counters import EnergyReading

RANGE = 1_000  # joules


def counter(file: Path, **changed: float) -> counters.FileCounter:
    return counters.FileCounter(
        file=file, **{"range_joules": RANGE, "longest_seconds": math.inf} | changed
    )


def show(file: Path, joules: float) -> None:
    file.write_text(f"{round(joules * 1e6)}\n")


@given(
    spent=st.lists(st.tuples(*[st.integers(0, RANGE - 1)] * 2), min_size=1, max_size=30),
    first=st.tuples(*[st.integers(0, RANGE - 1)] * 2),
)
def test_what_two_counters_count_adds_up_however_often_they_begin_again(
    tmp_path_factory: pytest.TempPathFactory,
    spent: list[tuple[int, int]],
    first: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("counters")
    files, totals = [folder / "a", folder / "b"], list(first)
    for file, total in zip(files, totals, strict=True):
        show(file, total)
    meter = counters.Meter(counters=[counter(file) for file in files], units=4, now=100.0)
    for turn, both in enumerate(spent, start=1):
        totals = [total + joules for total, joules in zip(totals, both, strict=True)]
        for file, total in zip(files, totals, strict=True):
            show(file, total % RANGE)
        counted = meter.measure_energy(100.0 + 2.0 * turn)
    assert counted.joules == pytest.approx(sum(totals) - sum(first))
    assert counted.counted_seconds == counted.passed_seconds == 4 * 2.0 * len(spent)


def test_while_a_counter_cannot_be_read_nothing_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "energy"
    show(file, 10)
    meter = counters.Meter(counters=[counter(file)], units=2, now=0.0)
    show(file, 15)
    meter.measure_energy(1.0)
    file.unlink()
    meter.measure_energy(3.0)
    show(file, 500)
    meter.measure_energy(7.0)
    show(file, 507)
    counted = meter.measure_energy(8.0)
    assert (counted.joules, counted.counted_seconds, counted.passed_seconds) == (12, 4, 16)


def test_a_counter_without_a_range_that_goes_back_was_set_back(tmp_path: Path) -> None:
    file = tmp_path / "energy"
    show(file, 90)
    meter = counters.Meter(counters=[counter(file, range_joules=math.inf)], units=1, now=0.0)
    show(file, 3)
    meter.measure_energy(1.0)
    show(file, 5)
    counted = meter.measure_energy(2.0)
    assert (counted.joules, counted.counted_seconds, counted.passed_seconds) == (2, 1, 2)


def test_readings_too_far_apart_count_nothing_and_keeping_up_helps(tmp_path: Path) -> None:
    file = tmp_path / "energy"
    found = {}
    for keeps_up in (False, True):
        show(file, 0)
        meter = counters.Meter(counters=[counter(file, longest_seconds=10.0)], units=1, now=0.0)
        for second in range(1, 13):
            show(file, 100 * second % RANGE)
            if keeps_up:
                meter.keep_up(float(second))
        found[keeps_up] = meter.measure_energy(12.0)
    assert (found[False].joules, found[False].counted_seconds) == (0, 0)
    assert (found[True].joules, found[True].counted_seconds) == (1_200, 12)
    assert found[False].passed_seconds == found[True].passed_seconds == 12
    counted = counters.Meter(counters=[], units=3, now=1.0).measure_energy(2.0)
    assert (counted.joules, counted.counted_seconds, counted.passed_seconds) == (0, 0, 3)


def test_a_file_that_does_not_tell_says_which_and_why(tmp_path: Path) -> None:
    with pytest.raises(counters.NoCounterError, match="away: No such file or directory"):
        counter(tmp_path / "away").read_joules()
    (tmp_path / "odd").write_text("enabled\n")
    with pytest.raises(counters.NoCounterError, match="odd is not a number"):
        counter(tmp_path / "odd").read_joules()


HOUR = 3_600.0
SUM = 4 * 300.0 * HOUR
FOUR = EnergyReading(joules=SUM, counted_seconds=4 * HOUR, passed_seconds=4 * HOUR)
UNCOUNTED = EnergyReading(joules=0.0, counted_seconds=0.0, passed_seconds=4 * HOUR)


def test_four_devices_of_300_watts_take_1_2_kwh_in_an_hour() -> None:
    assert FOUR.energy_kwh == pytest.approx(1.2)
    assert (FOUR.mean_watts, FOUR.counted_fraction) == (300.0, 1.0)
    assert FOUR.is_whole
    both = FOUR + UNCOUNTED
    assert (both.mean_watts, both.counted_fraction) == (300.0, 0.5)
    assert not both.is_whole


def test_what_nothing_counted_is_null_and_not_0() -> None:
    assert UNCOUNTED.as_json()["joules"] is None
    assert UNCOUNTED.mean_watts is UNCOUNTED.energy_kwh is None
    assert counters.NOTHING.counted_fraction == 0.0
    assert not counters.NOTHING.is_whole


@pytest.mark.parametrize("counted", [FOUR, UNCOUNTED, counters.NOTHING, FOUR + UNCOUNTED])
def test_it_comes_back_from_a_line_of_the_journal(counted: EnergyReading) -> None:
    assert EnergyReading.from_json(json.loads(json.dumps(counted.as_json()))) == counted
