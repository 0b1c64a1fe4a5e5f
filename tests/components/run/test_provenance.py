"""What a run says of the code that made it, whatever lies in the clone."""

import subprocess
from pathlib import Path

import pytest

from components.run import provenance


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one file of a clone, committed."""
    notes = tmp_path / "notes.txt"
    notes.write_text("weiss\n")
    name = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for words in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return notes


def test_an_invalid_utf8_change_is_part_of_the_difference(notes: Path) -> None:
    notes.write_bytes("weiß\n".encode("latin-1"))
    assert "+wei\\xdf\n" in provenance.source_diff()


def test_only_new_code_files_change_a_clone(notes: Path) -> None:
    for name in ("x.lock.yaml", "text/mine.txt", "components_of_mine/a.py"):
        (notes.parent / name).parent.mkdir(exist_ok=True)
        (notes.parent / name).touch()
    assert provenance.source_diff() == ""
    (notes.parent / "conf").mkdir()
    (notes.parent / "conf" / "mine.yaml").touch()
    assert provenance.source_diff() == "# untracked: conf/mine.yaml\n"
