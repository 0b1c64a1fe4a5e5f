"""Figures of benchmarks have verdicts, and files store the figures per processor."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ratios
from benchmarks.planning.worlds import MOST_SECONDS
from benchmarks.planning.worlds import ratios_of as ratios_of_worlds
from benchmarks.ratios import (
    Ratio,
    format_number,
    read_ratios,
    read_result,
    save_result,
    to_interval,
)
from benchmarks.training.guards import MOST_GUARDED
from benchmarks.training.guards import ratios_of as ratios_of_guards


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store results in a temporary folder."""
    monkeypatch.setattr(ratios, "RESULTS", tmp_path)
    return tmp_path


def ratio(value: float = 2.0, case: str = "a step", **fields: Any) -> Ratio:
    return Ratio(case, "the peer", value, **fields)


def measured_on(processor: str, date: str = "2026-01-01", **figures: Any) -> dict[str, Any]:
    return {"machine": {"processor": processor}, "date": date, "peer": "the peer", **figures}


def test_a_slower_result_changes_verdict_and_exit_status(capsys):
    for seconds, status in ((MOST_SECONDS, 0), (MOST_SECONDS + 0.1, 1)):
        worlds = ratios_of_worlds({1_024: 1.0, 12_288: seconds})
        assert [world.met for world in worlds] == [True, not status]
        assert save_result("worlds", measured_on("A"), worlds) == status
        assert ("missed" in capsys.readouterr().out) == bool(status)


def test_an_interval_is_judged_by_the_end_that_the_target_names() -> None:
    paired = {"median": 0.99, "low": 0.97, "high": MOST_GUARDED + 0.001}
    guarded, alone = ratios_of_guards({"paired_ratio": paired, "alone_fraction": 1e-4})
    assert not guarded.met
    assert alone.met
    assert guarded.target == "at most 1.01 (high end)"
    assert ratio(1.1, low=0.99, high=1.2, at_most=1.0, judged="low").met
    assert not ratio(1.1, low=1.01, high=1.2, at_most=1.0, judged="low").met
    assert not ratio(1.1, low=0.99, high=1.2, at_most=1.0).met
    assert ratio(1.1, low=0.99, high=1.2, at_least=1.1).met


def test_too_few_pairs_meet_no_target_of_an_interval() -> None:
    paired = {"median": 0.5, "low": math.nan, "high": math.nan}
    few = ratio(**to_interval(paired) | {"at_most": 1.0, "judged": "high"})
    assert not few.met
    assert few.figure == "0.500"


def test_equal_to_a_bound_is_met() -> None:
    assert ratio(1.15, at_least=1.15).met
    assert ratio(12.0, at_most=12.0).met
    assert not ratio(12.1, at_most=12.0).met
    assert ratio(9e9).met


def test_figures_and_targets_have_their_unit() -> None:
    part = ratio(3.1, low=2.0, high=4.0, at_most=3.0, unit="%")
    assert part.figure == "3.10 % (2.00 to 4.00)"
    assert part.target == "at most 3 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.99961, "1.00"), (0.04319, "0.0432"), (1.1, "1.10"), (24.06, "24.1"),
     (999.6, "1,000"), (4372.1, "4,372"), (0.0999999, "0.100")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_another_processor_adds_rows_and_the_same_one_replaces_them() -> None:
    save_result("x", measured_on("A", seconds=1), [ratio(2.0), ratio(3.0, "a pass")])
    save_result("x", measured_on("B", seconds=2), [ratio(4.0)])
    save_result("x", measured_on("A", "2026-02-02"), [ratio(5.0, low=4.0, high=6.0)])
    rows = [(row.case, row.value, row.processor, row.date) for row in read_ratios("x")]
    assert rows == [
        ("a step", 5.0, "A", "2026-02-02"),
        ("a pass", 3.0, "A", "2026-01-01"),
        ("a step", 4.0, "B", "2026-01-01"),
    ]
    assert read_result("x")["seconds"] == 2


def test_stored_rows_have_no_empty_fields_and_are_read_again(results: Path) -> None:
    full = ratio(1.0, low=0.5, high=1.5, at_most=2.0, judged="high", unit="s")
    save_result("x", measured_on("A"), [full, ratio(case="a pass")])
    stored = json.loads((results / "x.json").read_text("utf-8"))["ratios"]
    assert set(stored[1]) == {"case", "peer", "value", "processor", "date"}
    assert read_ratios("x")[0] == replace(full, processor="A", date="2026-01-01")
    assert read_ratios("nothing stored") == []
