"""Benchmark scripts with --help or wrong arguments print a text and measure nothing."""

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.entry import run_script
from command.arguments import ROOT

# Another script starts it.
INTERNAL = {"data_prep_measure"}
RunScript = Callable[..., int]


def main_block(file: Path) -> list[ast.stmt]:
    """Return the statements of a module's ``__main__`` block."""
    last = ast.parse(file.read_text("utf-8")).body[-1]
    is_main = isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'"
    return last.body if is_main and isinstance(last, ast.If) else []


def script_name(file: Path) -> str:
    """Return folder and stem of a script: ``training/guards``."""
    return str(file.relative_to(ROOT / "benchmarks").with_suffix(""))


def uses_entry(file: Path) -> bool:
    return any(ast.unparse(line).startswith("run_script(") for line in main_block(file))


PROGRAMS = sorted(file for file in (ROOT / "benchmarks").rglob("*.py") if main_block(file))
SCRIPTS = [file for file in PROGRAMS if uses_entry(file)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """Return a function that runs a script with arguments and returns its exit status."""

    def run_by_name(name: str, *words: str) -> int:
        (file,) = (file for file in PROGRAMS if script_name(file) == name)
        monkeypatch.setattr(sys, "argv", [name, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(file), run_name="__main__")
        return int(ended.value.code or 0)

    return run_by_name


def test_every_program_uses_the_entry_point() -> None:
    assert len(PROGRAMS) > 25
    assert {file.stem for file in PROGRAMS} - {file.stem for file in SCRIPTS} == INTERNAL


@pytest.mark.parametrize("file", SCRIPTS, ids=script_name)
def test_help_is_the_docstring_and_measures_nothing(file, run, capsys):
    assert run(script_name(file), "--help") == 0
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8")))
    assert capsys.readouterr().out == f"{docstring}\n"


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        pytest.param(
            *("planning/worlds", ["recipe=teuken"], "recipe: unknown recipe: 'teuken'"),
            marks=pytest.mark.long,
        ),
        ("training/guards", [], "recipe: a recipe is required"),
        (
            "preparation/data_open",
            [],
            "wrong number of arguments: 0\n\nHow long until the first batch",
        ),
        ("speed", ["x"], "wrong number of arguments: 1\n\nWrite the tables of docs/speed.md"),
    ],
)
def test_wrong_arguments_print_one_message(name, words, message, run, capsys):
    assert run(name, *words) == 2
    output = capsys.readouterr()
    assert output.err.startswith(message)
    assert output.out == ""


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_the_return_value_is_the_exit_status(returned, status, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "one", "two"])
    received: list[str] = []

    def main(words):
        received.extend(words)
        return returned

    with pytest.raises(SystemExit) as ended:
        run_script(main, min_words=2, max_words=2)
    assert (ended.value.code or 0) == status
    assert received == ["one", "two"]


def test_other_errors_are_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(KeyError, match="bug"):
        run_script(broken)
