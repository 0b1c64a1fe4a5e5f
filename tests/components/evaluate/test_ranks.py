"""The number of ranks of an evaluation, and the errors of failed ranks."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.evaluate import ranks
from components.evaluate.ranks import ask_ranks, be_a_rank, failure_of, ranks_here
from tests.components.evaluate.failing_rank import fail


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [("cpu", None, 1), ("cpu", 2, 2), ("cuda", None, 4), ("cuda", 3, 3)],
)
def test_there_is_one_rank_per_device(kind, asked, expected, monkeypatch):
    monkeypatch.setattr(ranks, "device_type", lambda named: kind)
    monkeypatch.setattr(ranks, "count_devices", lambda kind: 4)
    assert ranks_here(asked) == expected
    if kind == "cuda":
        with pytest.raises(RecipeError, match=r"^ranks: 5, but torch sees 4 devices here"):
            ranks_here(5)


def test_a_users_error_is_raised_again_and_others_with_their_traceback(tmp_path: Path) -> None:
    file = tmp_path / "failure.json"
    assert "exited with status 9" in str(failure_of(file, 9))
    for message, kind in (
        ("RecipeError: a.b: wrong\n  do this", RecipeError),
        ("KeyError: 'x'", ChildProcessError),
    ):
        file.write_text(json.dumps({"rank": 1, "message": message, "traceback": "line 7\n"}))
        found = failure_of(file, 1)
        assert type(found) is kind
    assert str(found) == "rank 1: KeyError: 'x'\nline 7\n"


def test_a_failed_rank_writes_its_error_and_no_answer(tmp_path, monkeypatch) -> None:
    work, error = tmp_path / "work", tmp_path / "error.json"
    work.write_text("no_such_key")
    monkeypatch.setattr("sys.argv", ["rank", str(work), str(tmp_path / "answer")])
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(KeyError, match="no_such_key"):
        be_a_rank(fail)
    assert "no_such_key" in json.loads(error.read_text())["message"]["message"]
    assert not (tmp_path / "answer").exists()
    be_a_rank(lambda content: {"bytes": len(content)})
    assert json.loads((tmp_path / "answer").read_bytes()) == {"bytes": 11}


@pytest.mark.long
def test_the_error_of_a_failed_rank_has_its_message() -> None:
    with pytest.raises(ChildProcessError, match=r"(?s)rank \d: .*no_such_key"):
        ask_ranks("tests.components.evaluate.failing_rank", "no_such_key", 2)
