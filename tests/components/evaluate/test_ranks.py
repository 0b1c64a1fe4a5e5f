"""How many ranks share the questions of an evaluation, and what is heard of one that fails."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.evaluate import ranks
from components.evaluate.ranks import ask_ranks, failure_of, ranks_here


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [("cpu", None, 1), ("cpu", 2, 2), ("cuda", None, 4), ("cuda", 3, 3)],
)
def test_each_device_has_a_rank_and_a_cpu_is_one(kind, asked, expected, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "device_type", lambda named: kind)
    monkeypatch.setattr(ranks, "count_devices", lambda kind: 4)
    assert ranks_here(asked) == expected
    if kind == "cuda":
        with pytest.raises(RecipeError, match=r"^ranks: 5, but torch sees 4 devices here"):
            ranks_here(5)


def test_what_a_user_can_mend_is_raised_again_and_all_else_is_told(tmp_path: Path) -> None:
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


def test_a_rank_that_fails_is_told_with_its_traceback() -> None:
    with pytest.raises(ChildProcessError, match=r"(?s)rank \d: .*no_such_key"):
        ask_ranks("tests.components.evaluate.failing_rank", "no_such_key", 1)
