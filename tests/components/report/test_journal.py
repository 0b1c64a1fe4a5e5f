"""What the journal keeps of a run that was killed, resumed, or both."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.journal import read_journal


def _step(step: int, loss: float) -> str:
    record = {
        "kind": "step", "step": step, "tokens": step * 100, "loss": loss, "lr": 1e-3,
        "gradient_norm": 1.0, "seconds": 0.5, "tokens_per_second": 200.0,
    }  # fmt: skip
    return json.dumps(record) + "\n"


def _mark(kind: str, step: int) -> str:
    return json.dumps({"kind": kind, "step": step, "tokens": step * 100}) + "\n"


def _held_out(step: int, loss: float) -> str:
    record = {"kind": "held_out", "step": step, "tokens": step * 100, "loss": loss}
    return json.dumps(record | {"by_source": {"en": loss}}) + "\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "metrics.jsonl"
    path.write_bytes(text.encode())
    return path


def test_reads_every_kind_of_record(tmp_path):
    text = _step(1, 5.0) + _held_out(1, 5.5) + _mark("checkpoint", 1)
    journal = read_journal(_write(tmp_path, text))
    assert [(s.step, s.tokens, s.loss) for s in journal.steps] == [(1, 100, 5.0)]
    assert journal.held_out[0].by_source == {"en": 5.5}
    assert [mark.step for mark in journal.checkpoints] == [1]
    assert (journal.resumes, journal.repeated_steps, journal.half_written_lines) == ((), 0, 0)


def test_of_a_step_computed_twice_the_last_counts(tmp_path):
    text = _step(1, 5.0) + _step(2, 4.0) + _mark("resume", 1) + _step(2, 3.5)
    journal = read_journal(_write(tmp_path, text))
    assert [s.loss for s in journal.steps] == [5.0, 3.5]
    assert journal.repeated_steps == 1


def test_what_a_resume_threw_away_does_not_outlive_a_second_kill(tmp_path):
    lost = _step(2, 4.0) + _step(3, 3.9) + _held_out(3, 4.1)
    text = _step(1, 5.0) + lost + _mark("resume", 1) + _step(2, 3.5)
    journal = read_journal(_write(tmp_path, text))
    assert [(s.step, s.loss) for s in journal.steps] == [(1, 5.0), (2, 3.5)]
    assert journal.held_out == ()
    assert [mark.step for mark in journal.resumes] == [1]


def test_a_half_written_last_line_is_left_out_and_counted(tmp_path):
    whole = _step(1, 5.0)
    for cut in (1, 10, len(whole) - 3):
        journal = read_journal(_write(tmp_path, whole + _step(2, 4.0)[:cut]))
        assert [s.step for s in journal.steps] == [1]
        assert journal.half_written_lines == 1


@pytest.mark.parametrize("newline", ["\n", ""])
def test_a_half_written_line_before_a_resume_is_left_out_and_counted(tmp_path, newline):
    text = _step(1, 5.0) + '{"kind": "step", "st' + newline + _mark("resume", 1) + _step(2, 4.0)
    journal = read_journal(_write(tmp_path, text))
    assert [s.step for s in journal.steps] == [1, 2]
    assert journal.half_written_lines == 1


def test_a_line_cut_inside_a_character_is_half_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(_step(1, 5.0).encode() + '{"kind": "held_out", "é'.encode()[:-1])
    assert read_journal(path).half_written_lines == 1


def test_a_run_killed_before_its_first_step_has_an_empty_journal(tmp_path):
    assert read_journal(tmp_path / "metrics.jsonl").steps == ()


def test_refuses_a_broken_line_that_no_kill_explains(tmp_path):
    path = _write(tmp_path, _step(1, 5.0) + "garbage\n" + _step(2, 4.0))
    with pytest.raises(RecipeError, match=r"metrics\.jsonl:2: is not JSON, and no kill"):
        read_journal(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"kind": "step", "step": 1}', "the record has no 'tokens'"),
        ('{"kind": "news"}', "kind 'news' is none of step, held_out"),
        ('{"kind": "resume", "step": null, "tokens": 0}', "int"),
    ],
)
def test_refuses_a_record_of_another_version(tmp_path, line, problem):
    with pytest.raises(RecipeError, match=problem) as caught:
        read_journal(_write(tmp_path, line + "\n"))
    assert caught.value.path.endswith("metrics.jsonl:1")
