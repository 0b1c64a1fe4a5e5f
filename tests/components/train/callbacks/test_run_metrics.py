"""Records of an evaluation: both means, and what ranks checkpoints."""

from pathlib import Path

import pytest

from components.checkpoint.metadata import RunProgress
from components.energy.counters import EnergyReading
from components.errors import RecipeError
from components.fault_tolerance.faults import fill_up
from components.run.history import read_lines
from components.train.callbacks.run_metrics import RunMetrics
from components.train.loggers import MetricsFile


def metrics_in(folder: Path) -> RunMetrics:
    file = MetricsFile(file=folder / "metrics.jsonl", writes=True, retry_seconds=0.0)
    return RunMetrics(file=file)


def test_a_metric_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n" * 100_000)
    metrics = metrics_in(tmp_path)
    with fill_up(100_000), pytest.raises(RecipeError, match=r"metrics\.jsonl: cannot be writt"):
        metrics.record_held_out(RunProgress(step=1, tokens=10), {"de": 2.0}, {"de": 1.0}, 0.5)
    metrics.record_held_out(RunProgress(step=2, tokens=20), {"de": 1.0}, {"de": 1.0}, 0.5)
    assert [line["step"] for line in read_lines(file)] == [2]


def test_logged_numbers_of_a_callback_do_not_hide_energy(tmp_path: Path) -> None:
    metrics = metrics_in(tmp_path)
    used = EnergyReading(joules=50.0, counted_seconds=1.0, passed_seconds=1.0)
    metrics.record_energy(RunProgress(step=1, tokens=10), used, used)
    for step in range(2, 2_000):
        metrics.file.append_record(
            "logged", RunProgress(step=step, tokens=10 * step), {"mine": 1.0}
        )
    assert metrics_in(tmp_path).energy_used["devices"].joules == 50.0


def test_an_evaluation_has_both_means_in_its_record(tmp_path: Path) -> None:
    metrics = metrics_in(tmp_path)
    shares = {"de": 0.9, "en": 0.1, "fi": 0.0}
    by_source = {"de": 2.0, "en": 4, "fi": 9}
    metrics.record_held_out(RunProgress(step=2, tokens=20), by_source, shares, 0.5)
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["weighted_loss"]) == (5.0, pytest.approx(2.2))
    assert line["shares"] == shares
    # Checkpoints of different phases are ranked by the mean that does not follow the phases.
    assert (metrics.held_out_loss(20), metrics.held_out_loss(30)) == (5.0, None)
