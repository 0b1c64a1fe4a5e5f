"""The table of attacks in the documentation names cases that there are."""

import re

from command.arguments import ROOT
from tests.attack.corpus import corpus

ROW = re.compile(
    r"^\| (?P<file>[^|]+) \| [^|]+ \| [^|]+ \| (?P<cases>`[^|]+) \|$", re.MULTILINE
)


def rows() -> list[tuple[str, list[str]]]:
    text = (ROOT / "docs" / "external_files.md").read_text("utf-8")
    found = ROW.finditer(text)
    return [(row["file"], re.findall("`([^`]+)`", row["cases"])) for row in found]


def test_every_named_case_is_in_the_corpus() -> None:
    known = [one.case.name for one in corpus()]
    named = [name for _, names in rows() for name in names]
    assert len(named) > 60
    assert [n for n in named if not any(one.startswith(f"{n}-") for one in known)] == []


def test_every_kind_of_file_has_its_row() -> None:
    files = " ".join(file for file, _ in rows())
    for kind in ("recipe", "lock", "bundle", "study", "task", "run folder", "site", "weights"):
        assert kind in files
