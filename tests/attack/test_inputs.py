"""Generated tokenizers and text files pass through the commands or are refused, whole.

``python -m tests.attack.inputs --only NUMBER`` repeats a case that failed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from command.arguments import ROOT
from tests.attack.inputs import InputCase, find_problem, write_case


def run_inputs(*words: str) -> str:
    """Run the cases as a program and return what it prints."""
    command = [sys.executable, "-m", "tests.attack.inputs", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_tokenizers_and_files_are_trained_on_whole_or_refused() -> None:
    assert "30 cases" in run_inputs("--cases", "30")  # `make attack`: 600


def test_a_case_is_the_same_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    cases = [write_case(7, number, tmp_path / "a") for number in (1,)]
    assert cases == [write_case(7, number, tmp_path / "b") for number in (1,)]


@pytest.mark.parametrize(
    ("is_tokenizer", "documents", "child", "statuses", "output", "problem"),
    [
        (True, ["a"], 0, [0, 0, 0, 0], "", ""),
        (True, ["a"], 0, [2], "why", ""),
        (True, ["a"], 0, [0, 2], "why", "prepare refuses what new accepted"),
        (True, ["a"], 0, [0, 0, 4], "why", "train ended with status 4"),
        (True, ["a"], -1, [0], "", "prepare took more than"),
        (True, ["a"], -9, [0], "", "the process ended with -9 in prepare"),
        (False, ["a"], 0, [2], "why", "new refuses a sound file"),
        (False, None, 0, [0, 2], "why", ""),
        (False, None, 0, [0, 0, 2], "why", "train refuses what prepare accepted"),
        (False, None, 0, [2], "Traceback (most recent call last):", "prints a traceback"),
    ],
)
def test_what_must_not_be_is_seen(
    is_tokenizer: bool,
    documents: list[str] | None,
    child: int,
    statuses: list[int],
    output: str,
    problem: str,
) -> None:
    case = InputCase(commands=(), documents=documents, is_tokenizer=is_tokenizer)
    found = find_problem(case, child, statuses, output)
    assert problem in found
    assert bool(problem) == bool(found)
