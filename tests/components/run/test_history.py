"""What is kept of a run that was killed, resumed, went back, or all of that.

A file is read from its end, or bisected, with the same result as from its beginning.
"""

import json
import math
import os
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from components.errors import RecipeError
from components.run import history
from components.run.history import (
    Line,
    held_until,
    lines_from_end,
    read_history,
    read_lines,
    run_lines,
)
from tests.components.report.conftest import energy_line, mark_line, write_history


def _step(step: int, loss: float) -> dict[str, Any]:
    return {
        "kind": "step", "step": step, "tokens": step * 100, "loss": loss, "lr": 1e-3,
        "auxiliary_loss": 0.0, "expert_load": 1.0, "loss_scale": 1.0,
        "gradient_norm": 1.0, "seconds": 0.5, "tokens_per_second": 200.0,
    }  # fmt: skip


def _held_out(step: int, loss: float) -> dict[str, Any]:
    record = {"kind": "held_out", "step": step, "tokens": step * 100, "loss": loss}
    return record | {"by_source": {"en": loss}, "seconds": 0.125}


def _read(folder: Path, *lines: dict[str, Any], tail: str = "") -> Any:
    write_history(folder, lines, tail)
    return read_history(folder)


def test_reads_measurements_and_events(tmp_path):
    history = _read(tmp_path, _step(1, 5.0), _held_out(1, 5.5), mark_line("checkpoint", 1))
    assert [(s.step, s.tokens, s.loss) for s in history.steps] == [(1, 100, 5.0)]
    assert history.held_out[0].by_source == {"en": 5.5}
    assert [(event.kind, event.step, event.cause) for event in history.events] == [
        ("checkpoint", 1, "due")
    ]
    assert (history.repeated_steps, history.half_written_lines) == (0, 0)


def test_discarded_steps_count_energy_and_no_time(tmp_path):
    used = [
        energy_line(step, devices=(10.0 * turn, turn, 2 * turn), hosts=(None, 0, turn))
        for turn, step in enumerate((1, 2, 2), start=1)
    ]
    resumed = mark_line("resume", 1), _step(2, 3.5)
    lines = (_step(1, 5.0), used[0], _step(2, 4.0), used[1], *resumed)
    without, history = _read(tmp_path, *lines), _read(tmp_path, *lines, used[2])
    devices, hosts = history.energy["devices"], history.energy["hosts"]
    assert (devices.joules, devices.counted_seconds, devices.passed_seconds) == (30, 3, 6)
    assert hosts.energy_kwh is None
    assert history.goodput == without.goodput
    assert _read(tmp_path, _step(1, 5.0)).energy == {}


@pytest.mark.parametrize("kind", ["resume", "roll_back"])
def test_the_last_result_of_a_repeated_step_counts(tmp_path, kind):
    lost = _step(2, 4.0), _step(3, 3.9), _held_out(3, 4.1)
    history = _read(tmp_path, _step(1, 5.0), *lost, mark_line(kind, 1), _step(2, 3.5))
    assert [(s.step, s.loss) for s in history.steps] == [(1, 5.0), (2, 3.5)]
    assert (history.held_out, history.repeated_steps) == ((), 2)
    assert [event.step for event in history.events_of(kind)] == [1]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    start = mark_line("start", 0)
    assert len(_read(tmp_path).steps) == 0
    assert _read(tmp_path).goodput.progress_fraction is None
    history = _read(tmp_path, start, _step(1, 5.0), _step(2, 4.0), start, _step(1, 5.0))
    assert [s.step for s in history.steps] == [1]
    assert history.repeated_steps == 2


def test_a_truncated_last_line_is_counted_and_ignored(tmp_path):
    whole = json.dumps(_step(2, 4.0))
    for cut in (1, 10, len(whole) - 3):
        history = _read(tmp_path, _step(1, 5.0), tail=whole[:cut])
        assert [s.step for s in history.steps] == [1]
        assert history.half_written_lines == 1
    (tmp_path / "metrics.jsonl").write_bytes('{"kind": "held_out", "é'.encode()[:-1])
    assert read_history(tmp_path).half_written_lines == 1


def test_each_start_allows_one_truncated_line(tmp_path):
    tail = '{"kind": "step", "st\n' + json.dumps(_step(2, 4.0) | {"time": 9.0}) + '\n{"ki'
    lines = (mark_line("start", 0), _step(1, 5.0), mark_line("resume", 1))
    history = _read(tmp_path, *lines, tail=tail)
    assert [s.step for s in history.steps] == [1, 2]
    assert history.half_written_lines == 2
    with pytest.raises(RecipeError, match=r"metrics\.jsonl:4: is not JSON, and a killed"):
        _read(tmp_path, *lines[:2], tail=tail)


# By hand: 6 s of preflight, 5 s until the ranks begin, 2 s to start and a step of 3 s; after a
# day in the queue the same job again, whose ranks tell why those before ended.
TWO_JOBS = [
    mark_line("preflight", 0) | {"time": 106.0, "seconds": 6.0},
    mark_line("start", 0) | {"time": 113.0, "seconds": 2.0},
    _step(1, 5.0) | {"time": 116.0, "seconds": 3.0},
    mark_line("preflight", 1) | {"time": 86_406.0, "seconds": 6.0},
    mark_line("job_end", 1) | {"time": 86_406.5, "seconds": 0.0},
    mark_line("restart", 1, restart=0) | {"time": 86_412.0, "seconds": 86_296.0},
    mark_line("resume", 1) | {"time": 86_413.0, "seconds": 2.0},
    _step(2, 5.0) | {"time": 86_416.0, "seconds": 3.0},
]
WITHOUT_PREFLIGHT = [line for line in TWO_JOBS if line["kind"] != "preflight"]


def test_held_time_starts_with_the_preflight_of_a_job(tmp_path):
    account = _read(tmp_path, *TWO_JOBS).goodput
    assert account.held_seconds == 2 * (6 + 5 + 2 + 3)
    assert account.lost_seconds["between processes"] == 86_400 - 116
    assert account.lost_seconds["starting"] == 2 * (6 + 5 + 2)
    assert account.lost_seconds["elsewhere"] == 0
    # A process that tells why another ended did not hold its devices since.
    account = _read(tmp_path, *WITHOUT_PREFLIGHT).goodput
    assert account.held_seconds == 2 * (2 + 3)


def test_restarted_ranks_hold_devices_between_starts():
    lines = [
        line | ({"evidence": {"restart": 1}} if line["kind"] == "restart" else {})
        for line in WITHOUT_PREFLIGHT
    ]
    assert held_until(86_416.0, lines) == 86_416 - 111


def test_held_seconds_do_not_depend_on_the_order_of_records():
    energy = {"kind": "energy", "time": 86_416.5, "step": 2, "tokens": 2}
    assert held_until(86_420.0, [energy, *reversed(TWO_JOBS)]) == 2 * (6 + 5 + 2 + 3) + 4


def test_goodput_is_the_time_of_the_steps_that_count(tmp_path):
    """By hand: 2 s to start, 2 steps of 3 s, one of them lost, a gap of 10 s, it again."""
    history = _read(
        tmp_path,
        mark_line("start", 0) | {"time": 102.0, "seconds": 2.0},
        _step(1, 5.0) | {"time": 105.0, "seconds": 3.0},
        mark_line("checkpoint", 1) | {"time": 106.0, "seconds": 1.0},
        _step(2, 5.0) | {"time": 109.0, "seconds": 3.0},
        mark_line("job_end", 1) | {"time": 118.0, "seconds": 0.0},  # by the job after it
        mark_line("resume", 1) | {"time": 123.0, "seconds": 4.0},
        _held_out(1, 5.0) | {"time": 124.0, "seconds": 1.0},
        mark_line("skip", 1) | {"time": 126.0, "seconds": 2.0},
        _step(2, 5.0) | {"time": 130.0, "seconds": 3.5},
        mark_line("job_end", 2) | {"time": 150.0, "seconds": 0.0},
    )
    account = history.goodput
    assert account.wall_seconds == 30.0
    assert account.progress_seconds == 6.5
    assert account.progress_fraction == pytest.approx(6.5 / 30.0)
    assert account.lost_seconds == {
        "starting": 6.0,
        "between processes": 10.0,
        "steps computed again": 3.0,
        "checkpoints": 1.0,
        "held-out losses": 1.0,
        "guards": 2.0,
        "elsewhere": 0.5,
    }


HALF = '{"kind": "step", "st'


def step(number: int, **changed: object) -> dict[str, Any]:
    line = {
        "kind": "step", "time": float(number), "step": number, "tokens": number * 10,
        "loss": 2.0, "seconds": 0.5, "tokens_per_second": 20.0,
    }  # fmt: skip
    return line | changed


def event(kind: str, at: float, **evidence: object) -> dict[str, Any]:
    return {
        "kind": kind, "time": at, "step": 0, "tokens": 0, "cause": "due", "seconds": 0.0,
        "evidence": evidence,
    }  # fmt: skip


def write(file: Path, *lines: dict[str, Any] | str) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def read_run(run: Path) -> tuple[list[Line], int]:
    """Return the lines of a run and how many others there are."""
    broken: list[str] = []
    return list(run_lines(run, broken)), len(broken)


def test_truncated_lines_are_ignored_at_any_place(tmp_path):
    file = write(tmp_path / "metrics.jsonl", step(1), HALF, step(2), "", '"a text"', step(3))
    assert [line["step"] for line in read_lines(file)] == [1, 2, 3]
    write(tmp_path / "metrics.jsonl", step(1), HALF, step(3))
    write(tmp_path / "events.jsonl", event("start", 0.5), event("skip", 2.0))
    found, half_written = read_run(tmp_path)
    assert [record["kind"] for _, record in found] == ["start", "step", "skip", "step"]
    assert half_written == 1
    assert found[-1][0] == f"{tmp_path / 'metrics.jsonl'}:3"


def test_null_for_a_measured_number_is_read_as_nan(tmp_path):
    held_out = {"loss": None, "weighted_loss": None, "by_source": {"de": None, "en": 2.0}}
    lines = [step(1, loss=None), {**step(2), "kind": "held_out", **held_out}]
    energy = {"joules": None, "counted_seconds": 0.0, "passed_seconds": 0.0}
    lines.append({"kind": "energy", "time": 3.0, "devices": energy, "hosts": energy})
    first, second, third = read_lines(write(tmp_path / "metrics.jsonl", *lines))
    assert [math.isnan(first["loss"]), math.isnan(second["loss"])] == [True, True]
    assert math.isnan(second["weighted_loss"])
    assert math.isnan(second["by_source"]["de"])
    assert second["by_source"]["en"] == 2.0
    assert third["devices"]["joules"] is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"kind": "step"}, "time is missing; step is missing"),
        (step(1, loss="low"), "loss: input should be a valid number, got 'low'"),
        (step(1, time=float("inf")), "time: input should be a finite number"),
        (step(-1), "step: input should be greater than or equal to 0, got -1"),
        ({"kind": "energy", "time": 1.0, "devices": {}}, "devices.joules is missing"),
        (event("restart", 1.0), "evidence.restart is missing"),
        ({"kind": "step", "step": 1, "seconds": 0.5, "time": 1.0}, "tokens is missing"),
        ({"kind": "news", "step": 1, "tokens": 1, "time": 1.0}, "cause is missing"),
        (step(1, step=None), "step: input should be a valid integer, got None"),
        (step(1, time="noon"), "time: input should be a valid number, got 'noon'"),
        (_held_out(1, 5.0) | {"time": 1.0, "by_source": None}, "by_source: input should be a"),
    ],
)
def test_an_invalid_record_is_refused(tmp_path, line, problem):
    file = write(tmp_path / "metrics.jsonl", step(1), line)
    with pytest.raises(RecipeError) as caught:
        read_lines(file)
    assert caught.value.path == f"{file}:2"
    assert caught.value.problem.startswith(problem)


def test_a_pipe_and_a_very_long_line_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RecipeError, match="cannot be read: is not a regular file"):
        read_run(tmp_path)
    monkeypatch.setattr(history, "MOST_LINE_BYTES", 100)
    file = tmp_path / "long.jsonl"
    file.write_text("x" * 101)
    with pytest.raises(RecipeError, match=r"long\.jsonl:1: is longer than any line of a run"):
        read_lines(file)


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_reading_from_the_end_gives_all_lines(tmp_path, monkeypatch, size):
    monkeypatch.setattr(history, "BLOCK_BYTES", size)
    file = write(tmp_path / "metrics.jsonl", step(1), HALF, "", step(2), event("skip", 2.5))
    with file.open("a") as stream:
        stream.write(json.dumps(step(3)))  # without the end of its line
    found = list(lines_from_end(file))
    assert found == read_lines(file)[::-1]
    assert [one["kind"] for one in found] == ["step", "skip", "step", "step"]
    assert list(lines_from_end(tmp_path / "none.jsonl")) == []


def test_one_skipped_line_a_block_is_returned(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "BLOCK_BYTES", 10_000)
    lines = [event("start", 0.0), *(step(number) for number in range(1, 1_000))]
    file = write(tmp_path / "metrics.jsonl", *lines)
    found = [one["step"] for one in lines_from_end(file, skipped=(b'{"kind": "step"',))]
    assert found == sorted(found, reverse=True)
    assert len(found) == -(-file.stat().st_size // 10_000)
    assert found[-1] == 0


def test_a_file_is_read_from_its_end_only_as_far_as_needed(tmp_path):
    """The file is mostly a hole of 3 GiB, which is longer than any line may be."""
    file = write(tmp_path / "metrics.jsonl", step(1))
    with file.open("r+b") as stream:
        stream.seek(3 << 30)
        stream.write(b"".join(b"\n" + json.dumps(step(n)).encode() for n in range(2, 20_000)))
    late = islice(lines_from_end(file), 10_000)
    assert [one["step"] for one in late] == list(range(19_999, 9_999, -1))
    with pytest.raises(RecipeError, match="is longer than any line of a run"):
        list(lines_from_end(file))


def test_an_invalid_record_near_the_end_is_refused(tmp_path):
    file = write(tmp_path / "metrics.jsonl", step(1), step(2, loss="low"))
    with pytest.raises(RecipeError, match="near its end: loss: input should be a valid number"):
        list(lines_from_end(file))


@pytest.mark.parametrize("seed", range(20))
def test_events_give_the_held_seconds_of_all_records(tmp_path, seed):
    """A start tells when the last measurement before it was made."""
    random = Random(seed)
    time, metrics, event_log = 0.0, list[dict[str, Any]](), list[dict[str, Any]]()
    for _ in range(random.randint(1, 6)):
        time += random.random() * 100
        if random.random() < 0.5:
            event_log.append(event("preflight", time := time + 3))
        told = {"measured_until": metrics[-1]["time"]} if metrics else {}
        event_log.append(event("resume" if metrics else "start", time := time + 2.5, **told))
        for number in range(random.choice([0, 1, 3, 50])):
            metrics.append(step(number, time=(time := time + random.random())))
        if random.random() < 0.5:
            event_log.append(event("stop", time))
    write(tmp_path / "metrics.jsonl", *metrics)
    write(tmp_path / "events.jsonl", *event_log)
    every = [record for _, record in read_run(tmp_path)[0]]
    events = read_lines(tmp_path / "events.jsonl")
    assert held_until(time + 9, events) == pytest.approx(held_until(time + 9, every))
