"""Lines that a kill may cut anywhere."""

import json
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.checkpoint.metadata import RunProgress
from components.errors import RecipeError
from components.fault_tolerance.faults import fill_up
from components.run.event_log import (
    EventLog,
    _seconds_at_boot,
    append_line,
    job_name,
    node_name,
    run_time,
)
from components.run.history import read_lines

NOTHING = {"joules": None, "counted_seconds": 0.0, "passed_seconds": 0.0}
ENERGY = {"devices": NOTHING, "hosts": NOTHING}


def note(event_log: EventLog, step: int) -> None:
    progress = RunProgress(step=step, tokens=10 * step)
    event_log.write_event("skip", progress, "why", {"a": [1, 2]}, seconds=0.5)


def test_an_event_has_step_time_cause_and_duration(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    note(EventLog(file=file, writes=False, retry_seconds=0.0), 7)
    assert read_lines(file) == []
    assert list(tmp_path.iterdir()) == []
    note(EventLog(file=file, writes=True, retry_seconds=0.0), 7)
    (event,) = read_lines(file)
    assert event.pop("time") > 1.7e9
    figures = {"step": 7, "tokens": 70, "seconds": 0.5, "evidence": {"a": [1, 2]}}
    assert event == {"kind": "skip", "cause": "why", **figures}


def test_an_event_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"be written: Is a directory\n  repair the fi"):
        note(EventLog(file=tmp_path, writes=True, retry_seconds=0.0), 7)
    event_log = EventLog(file=tmp_path / "events.jsonl", writes=True, retry_seconds=0.0)
    with fill_up(10), pytest.raises(RecipeError, match=r"too large\n  raise the file size"):
        note(event_log, 1)


def test_the_line_after_a_truncated_line_is_complete(tmp_path: Path) -> None:
    first, following = ({"kind": "energy", "time": at, **ENERGY} for at in (1.0, 2.0))
    whole = json.dumps({"kind": "é"}, ensure_ascii=False).encode()
    for cut in range(1, len(whole)):
        file = tmp_path / f"{cut}.jsonl"
        file.write_bytes(json.dumps(first).encode() + b"\n" + whole[:cut])
        append_line(file, following, sync=False)
        assert read_lines(file) == [first, following]


def test_an_event_is_completed_when_the_disk_has_room(tmp_path, caplog):
    """What fits of the line is written at first, as a disk takes it that fills up within."""
    file = tmp_path / "events.jsonl"
    event_log = EventLog(file=file, writes=True, retry_seconds=60.0)
    note(event_log, 1)
    one = file.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with fill_up(one + one // 2), ThreadPoolExecutor(1) as executor:
        written = executor.submit(note, event_log, 2)
        while not caplog.messages:
            time.sleep(0.01)
        assert file.stat().st_size == one + one // 2
        assert [event["step"] for event in read_lines(file)] == [1]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        written.result()
    assert [event["step"] for event in read_lines(file)] == [1, 2]


def test_the_time_of_a_run_never_decreases(tmp_path, monkeypatch):
    """The second process runs where the clock is an hour behind; then that clock is set."""
    event_log = EventLog(file=tmp_path / "events.jsonl", writes=True, retry_seconds=0.0)
    real = time.time
    for behind in (0.0, 3_600.0):
        _seconds_at_boot.cache_clear()
        monkeypatch.setattr(time, "time", lambda behind=behind: real() - behind)
        note(event_log, 1)
        line = {"kind": "energy", "time": run_time(tmp_path), **ENERGY}
        append_line(tmp_path / "metrics.jsonl", line, sync=False)
        monkeypatch.setattr(time, "time", lambda: 0.0)
        note(event_log, 2)
    events = read_lines(tmp_path / "events.jsonl")
    measured = [line["time"] for line in read_lines(tmp_path / "metrics.jsonl")]
    times = [event["time"] for event in events]
    order = [times[0], measured[0], times[1], times[2], measured[1], times[3]]
    assert order == sorted(order)
    assert real() - 60 < order[0] <= order[-1] < real() + 60


@pytest.mark.parametrize("line", ["{", "[1]", '{"kind": "skip"}', "\x00"])
def test_an_event_is_written_after_a_damaged_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    note(EventLog(file=tmp_path / "events.jsonl", writes=True, retry_seconds=0.0), 7)
    assert read_lines(tmp_path / "events.jsonl")[0]["time"] == pytest.approx(time.time(), 60)


@pytest.mark.parametrize(
    ("seen", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "80"}, "80"),
        ({"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "8"}, "77_3"),
        ({"PBS_JOBID": "12.pbs-0001"}, "12.pbs-0001"),
    ],
)
def test_job_and_node_have_the_names_of_their_scheduler(seen, job):
    assert job_name(seen) == job
    assert node_name({"SLURMD_NODENAME": "jwb0001"}) == "jwb0001"
    assert node_name({}) == socket.gethostname()
