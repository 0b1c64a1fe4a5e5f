"""Half lines are left out by one rule; what is no record of a run is refused by its line.

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
from components.run.history import Line, held_until, lines_from_end, read_lines, run_lines

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


def test_half_lines_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", step(1), HALF, step(2), "", '"a text"', step(3))
    assert [line["step"] for line in read_lines(file)] == [1, 2, 3]


def test_null_for_a_measured_number_is_read_as_one_that_is_not_finite(tmp_path: Path) -> None:
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


def test_both_files_are_one_story_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", step(1), HALF, step(3))
    write(tmp_path / "events.jsonl", event("start", 0.5), event("skip", 2.0))
    found, half_written = read_run(tmp_path)
    assert [record["kind"] for _, record in found] == ["start", "step", "skip", "step"]
    assert half_written == 1
    assert found[-1][0] == f"{tmp_path / 'metrics.jsonl'}:3"


def test_more_half_lines_than_kills_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", step(1), HALF, HALF)
    with pytest.raises(RecipeError, match=r"metrics\.jsonl:3: is not JSON, and a killed"):
        read_run(tmp_path)
    write(tmp_path / "events.jsonl", event("start", 0.0), event("resume", 0.5))
    assert read_run(tmp_path)[1] == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"kind": "step"}, "time is missing; step is missing"),
        (step(1, loss="low"), "loss: input should be a valid number, got 'low'"),
        (step(1, time=float("inf")), "time: input should be a finite number"),
        (step(-1), "step: input should be greater than or equal to 0, got -1"),
        ({"kind": "energy", "time": 1.0, "devices": {}}, "devices.joules is missing"),
        (event("restart", 1.0), "evidence.restart is missing"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(
    tmp_path: Path, line: dict[str, Any], problem: str
) -> None:
    file = write(tmp_path / "metrics.jsonl", step(1), line)
    with pytest.raises(RecipeError) as caught:
        read_lines(file)
    assert caught.value.path == f"{file}:2"
    assert caught.value.problem.startswith(problem)


def test_a_pipe_and_a_line_without_an_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RecipeError, match="cannot be read: is not a regular file"):
        read_run(tmp_path)
    monkeypatch.setattr(history, "MOST_LINE_BYTES", 100)
    file = tmp_path / "long.jsonl"
    file.write_text("x" * 101)
    with pytest.raises(RecipeError, match=r"long\.jsonl:1: is longer than any line of a run"):
        read_lines(file)


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_the_lines_from_the_end_are_the_lines_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(history, "BLOCK_BYTES", size)
    file = write(tmp_path / "metrics.jsonl", step(1), HALF, "", step(2), event("skip", 2.5))
    with file.open("a") as stream:
        stream.write(json.dumps(step(3)))  # without the end of its line
    found = list(lines_from_end(file))
    assert found == read_lines(file)[::-1]
    assert [one["kind"] for one in found] == ["step", "skip", "step", "step"]
    assert list(lines_from_end(tmp_path / "none.jsonl")) == []


def test_lines_that_are_skipped_still_tell_once_a_block_how_far_back_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BLOCK_BYTES", 10_000)
    lines = [event("start", 0.0), *(step(number) for number in range(1, 1_000))]
    file = write(tmp_path / "metrics.jsonl", *lines)
    found = [one["step"] for one in lines_from_end(file, skipped=(b'{"kind": "step"',))]
    assert found == sorted(found, reverse=True)
    assert len(found) == -(-file.stat().st_size // 10_000)
    assert found[-1] == 0


def test_a_file_is_not_read_further_back_than_is_asked_for(tmp_path: Path) -> None:
    """The file is mostly a hole of 3 GiB, which is longer than any line may be."""
    file = write(tmp_path / "metrics.jsonl", step(1))
    with file.open("r+b") as stream:
        stream.seek(3 << 30)
        stream.write(b"".join(b"\n" + json.dumps(step(n)).encode() for n in range(2, 20_000)))
    late = islice(lines_from_end(file), 10_000)
    assert [one["step"] for one in late] == list(range(19_999, 9_999, -1))
    with pytest.raises(RecipeError, match="is longer than any line of a run"):
        list(lines_from_end(file))


def test_a_line_near_the_end_that_is_no_record_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", step(1), step(2, loss="low"))
    with pytest.raises(RecipeError, match="near its end: loss: input should be a valid number"):
        list(lines_from_end(file))


@pytest.mark.parametrize("seed", range(20))
def test_the_events_alone_give_the_seconds_that_all_lines_give(
    tmp_path: Path, seed: int
) -> None:
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
