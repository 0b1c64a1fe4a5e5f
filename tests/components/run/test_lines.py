"""Half lines are left out by one rule; what is no record of a run is refused by its line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from components.errors import RecipeError
from components.run import history
from components.run.history import read_lines, read_run_lines

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


def test_half_lines_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    file = write(tmp_path / "metrics.jsonl", step(1), HALF, step(2), "", '"a text"', step(3))
    assert [line["step"] for line in read_lines(file)] == [1, 2, 3]


def test_both_files_are_one_story_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", step(1), HALF, step(3))
    write(tmp_path / "journal.jsonl", event("start", 0.5), event("skip", 2.0))
    found, half_written = read_run_lines(tmp_path)
    assert [record["kind"] for _, record in found] == ["start", "step", "skip", "step"]
    assert half_written == 1
    assert found[-1][0] == f"{tmp_path / 'metrics.jsonl'}:3"


def test_more_half_lines_than_kills_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", step(1), HALF, HALF)
    with pytest.raises(RecipeError, match=r"metrics\.jsonl:3: is not JSON, and no kill expla"):
        read_run_lines(tmp_path)
    write(tmp_path / "journal.jsonl", event("start", 0.0), event("resume", 0.5))
    assert read_run_lines(tmp_path)[1] == 2


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
    with pytest.raises(RecipeError, match="cannot be read: is no regular file"):
        read_run_lines(tmp_path)
    monkeypatch.setattr(history, "MOST_LINE_BYTES", 100)
    file = tmp_path / "long.jsonl"
    file.write_text("x" * 101)
    with pytest.raises(RecipeError, match=r"long\.jsonl:1: is longer than any line of a run"):
        read_lines(file)
