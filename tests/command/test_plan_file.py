"""``action=plan file=FILE``: a page beside what is printed."""

import json
import os
from pathlib import Path

import pytest

from command.actions.plan import run
from command.arguments import read_point
from command.perform import run_action
from components.errors import RecipeError

Said = pytest.CaptureFixture[str]

WORDS = ["recipe=teuken7b", "cluster=juwels", "action=plan"]


def test_page_is_named_after_tables(tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "new" / "plan.html"
    file.parent.mkdir()
    file.write_text("old", "utf-8")
    assert run_action("plan", read_point([*WORDS, f"file={file}"])).status == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "teuken7b on juwels, scale=full"
    assert "Memory" in [line.rstrip() for line in shown]
    assert shown[-1] == str(file)
    assert "<title>teuken7b on juwels, scale=full: plan</title>" in file.read_text("utf-8")
    assert list(file.parent.iterdir()) == [file]


def test_json_with_page_is_one_object(tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "new" / "plan.html"
    run(read_point([*WORDS, "output=json", f"file={file}"]))
    shown = capsys.readouterr()
    assert json.loads(shown.out)["recipe"] == "teuken7b"
    assert shown.err.splitlines()[-1] == str(file)
    with pytest.raises(RecipeError, match="is a folder"):
        run(read_point([*WORDS, f"file={tmp_path}"]))


@pytest.mark.parametrize("below", ["file", "pipe"])
def test_place_that_cannot_be_written_has_remedy(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    place = tmp_path / below if below == "pipe" else tmp_path / below / "plan.html"
    with pytest.raises(RecipeError, match=r"\n  .*(use another|set it to a)"):
        run(read_point([*WORDS, f"file={place}"]))
