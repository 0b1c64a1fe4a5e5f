"""What a run says of the code that made it, whatever lies in the clone."""

import subprocess
from pathlib import Path

import pytest

from components.run import provenance


def test_a_change_that_is_no_utf8_is_part_of_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("weiss\n")
    name = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for words in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    notes.write_bytes("weiß\n".encode("latin-1"))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert "+wei\\xdf\n" in provenance.source_diff()
