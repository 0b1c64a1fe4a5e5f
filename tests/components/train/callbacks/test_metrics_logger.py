"""Measurements on a full disk: the run waits or says so; curves alone end no run."""

import logging
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]  # it has no types
    EventAccumulator,
)

from components.checkpoint.metadata import RunProgress
from components.errors import RecipeError
from components.fault_tolerance.faults import fill_up
from components.run.history import read_lines
from components.train.callbacks.metrics_logger import Curves, Metrics

SOON_SECONDS = 300.0


def test_a_measurement_for_which_there_is_no_room_says_so(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n" * 100_000)
    curves = Curves(folder=tmp_path / "curves")
    metrics = Metrics(file=file, curves=curves, retry_seconds=0.0)
    with fill_up(100_000), pytest.raises(RecipeError, match=r"metrics\.jsonl: cannot be writt"):
        metrics.held_out(RunProgress(step=1, tokens=10), {"de": 2.0}, {"de": 1.0}, 0.5)
    metrics.held_out(RunProgress(step=2, tokens=20), {"de": 1.0}, {"de": 1.0}, 0.5)
    curves.close()
    assert [line["step"] for line in read_lines(file)] == [2]


def test_an_evaluation_has_both_means_in_its_line_and_in_the_curves(tmp_path: Path) -> None:
    file, curves = tmp_path / "metrics.jsonl", Curves(folder=tmp_path / "curves")
    metrics = Metrics(file=file, curves=curves, retry_seconds=0.0)
    shares = {"de": 0.9, "en": 0.1, "fi": 0.0}
    metrics.held_out(RunProgress(step=2, tokens=20), {"de": 2.0, "en": 4, "fi": 9}, shares, 0.5)
    curves.close()
    (line,) = read_lines(file)
    assert (line["loss"], line["weighted_loss"]) == (5.0, pytest.approx(2.2))
    assert line["shares"] == shares
    # Checkpoints of different phases are ranked by the mean that does not follow the phases.
    assert (metrics.held_out_loss(20), metrics.held_out_loss(30)) == (5.0, None)
    events = EventAccumulator(str(tmp_path / "curves")).Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == {
        "held_out": pytest.approx(2.2),
        "held_out_unweighted": 5.0,
    }


@pytest.mark.filterwarnings(  # Python tells of it once more when the thread is collected
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_curves_go_on_in_a_new_file_once_there_is_room_and_print_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    curves = Curves(folder=tmp_path)
    with fill_up(0), caplog.at_level(logging.WARNING):
        end = time.monotonic() + SOON_SECONDS
        while not caplog.messages:
            assert time.monotonic() < end
            curves.add({"loss": 3.0}, step=1)
            time.sleep(0.05)
    assert "Traceback" not in capfd.readouterr().err
    assert caplog.messages[0] == f"{tmp_path}: File too large; some points are missing there"
    curves.add({"loss": 2.0}, step=2)
    curves.close()
    newest = max(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    found = EventAccumulator(str(newest)).Reload().Scalars("loss")
    assert [(one.step, one.value) for one in found] == [(2, 2.0)]
