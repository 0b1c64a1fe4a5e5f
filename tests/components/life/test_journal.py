"""Lines that a kill may cut anywhere."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.life.journal import Journal, append_line, read_lines


def note(journal: Journal, step: int) -> None:
    journal.note(
        "skip", step=step, tokens=10 * step, cause="why", seconds=0.5, evidence={"a": [1, 2]}
    )


def test_an_event_says_when_where_why_and_for_how_long(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    note(Journal(file=file, writes=True), 7)
    (event,) = read_lines(file)
    assert event.pop("time") > 1.7e9
    assert event == {
        "kind": "skip",
        "step": 7,
        "tokens": 70,
        "cause": "why",
        "seconds": 0.5,
        "evidence": {"a": [1, 2]},
    }


def test_ranks_that_do_not_write_leave_no_file(tmp_path: Path) -> None:
    note(Journal(file=tmp_path / "journal.jsonl", writes=False), 7)
    assert list(tmp_path.iterdir()) == []


def test_after_a_line_cut_anywhere_the_next_is_whole(tmp_path: Path) -> None:
    whole = json.dumps({"kind": "é"}, ensure_ascii=False).encode()
    for cut in range(1, len(whole)):
        file = tmp_path / f"{cut}.jsonl"
        file.write_bytes(b'{"kind": "first"}\n' + whole[:cut])
        append_line(file, {"kind": "next"}, sync=False)
        assert read_lines(file) == [{"kind": "first"}, {"kind": "next"}]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "journal.jsonl") == []


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be written: Is a directory\n  mend the fi"):
        note(Journal(file=tmp_path, writes=True), 7)
