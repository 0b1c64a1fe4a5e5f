"""Loggers: curves on a full disk end no run, and what callbacks log is recorded once."""

import logging
import time

import pytest
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]  # it has no types

from components.checkpoint.metadata import RunProgress
from components.fault_tolerance.faults import fill_up
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.train.loggers import MetricsFile, TensorBoardCurves

SOON_SECONDS = 300.0
STEP = {"loss": 2.0, "seconds": 0.5, "tokens_per_second": 20.0}


@pytest.mark.filterwarnings(  # Python tells of it once more when the thread is collected
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_curves_continue_in_a_new_file_when_the_disk_has_room(
    tmp_path, caplog, capfd, monkeypatch
):
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # a trainer of another test may have set it
    folder = tmp_path / "tensorboard"
    curves = TensorBoardCurves(folder=RunFolder(tmp_path))
    with fill_up(0), caplog.at_level(logging.WARNING):
        end = time.monotonic() + SOON_SECONDS
        while not caplog.messages:
            assert time.monotonic() < end
            curves.log_metrics({"loss": 3.0}, step=1)
            time.sleep(0.05)
    assert "Traceback" not in capfd.readouterr().err
    assert caplog.messages[0] == f"{folder}: File too large; some points are missing there"
    curves.log_metrics({"loss": 2.0}, step=2)
    curves.finalize("success")
    newest = max(folder.iterdir(), key=lambda file: file.stat().st_size)
    found = EventAccumulator(str(newest)).Reload().Scalars("loss")
    assert [(one.step, one.value) for one in found] == [(2, 2.0)]


def test_logged_numbers_of_a_callback_are_recorded(tmp_path):
    file = MetricsFile(file=tmp_path / "metrics.jsonl", writes=False, retry_seconds=0.0)
    file.append_record("step", RunProgress(step=3, tokens=30), STEP)
    assert not list(tmp_path.iterdir())
    file = MetricsFile(file=tmp_path / "metrics.jsonl", writes=True, retry_seconds=0.0)
    file.append_record("step", RunProgress(step=3, tokens=30), STEP)
    file.log_metrics({"loss": 2.0, "lr": 0.1, "epoch": 0.0}, step=3)
    file.log_metrics({"loss": 2.0, "my_norm": 7.5}, step=3)
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert [line["kind"] for line in lines] == ["step", "logged"]
    assert (lines[1]["step"], lines[1]["my_norm"]) == (3, 7.5)
    assert "loss" not in lines[1]
