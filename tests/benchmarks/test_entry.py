"""A benchmark that is asked for help, or gets wrong words, measures nothing."""

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.entry import enter
from command.arguments import ROOT

# It is started by another script, with words of that script's.
BY_OTHERS = {"data_prep_measure"}
Ran = Callable[..., int]


def ends(file: Path) -> list[ast.stmt]:
    """Give what a module does where it is the program."""
    last = ast.parse(file.read_text("utf-8")).body[-1]
    started = isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'"
    return last.body if started and isinstance(last, ast.If) else []


def place(file: Path) -> str:
    """Name a script by folder and stem: ``training/guards``."""
    return str(file.relative_to(ROOT / "benchmarks").with_suffix(""))


def enters(file: Path) -> bool:
    return any(ast.unparse(one).startswith("enter(") for one in ends(file))


PROGRAMS = sorted(file for file in (ROOT / "benchmarks").rglob("*.py") if ends(file))
ENTERING = [file for file in PROGRAMS if enters(file)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a script with words, as a command does, and return its exit status."""

    def ran(name: str, *words: str) -> int:
        (file,) = (file for file in PROGRAMS if place(file) == name)
        monkeypatch.setattr(sys, "argv", [name, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(file), run_name="__main__")
        return int(ended.value.code or 0)

    return ran


def test_every_program_enters_alike() -> None:
    assert len(PROGRAMS) > 25
    assert {file.stem for file in PROGRAMS} - {file.stem for file in ENTERING} == BY_OTHERS


@pytest.mark.parametrize("file", ENTERING, ids=place)
def test_help_is_the_docstring_and_measures_nothing(
    file: Path, run: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place(file), "--help") == 0
    told = ast.get_docstring(ast.parse(file.read_text("utf-8")))
    assert capsys.readouterr().out == f"{told}\n"


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        pytest.param(
            *("planning/worlds", ["recipe=teuken"], "recipe: there is no recipe 'teuken'"),
            marks=pytest.mark.long,
        ),
        ("training/guards", [], "recipe: no recipe is named"),
        (
            "preparation/data_open",
            [],
            "0 words are not what it takes\n\nHow long until the first batch",
        ),
        ("speed", ["x"], "1 words are not what it takes\n\nWrite the tables of docs/speed.md"),
    ],
)
def test_wrong_words_are_told_in_one_message(
    name: str, words: list[str], told: str, run: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, *words) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith(told)
    assert seen.out == ""


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_what_a_script_finds_is_its_status(
    returned: int | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "one", "two"])
    given: list[str] = []

    def main(words: list[str]) -> int | None:
        given.extend(words)
        return returned

    with pytest.raises(SystemExit) as ended:
        enter(main, least=2, most=2)
    assert (ended.value.code or 0) == status
    assert given == ["one", "two"]


def test_what_a_user_cannot_mend_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(KeyError, match="bug"):
        enter(broken)
