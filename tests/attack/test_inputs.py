"""Commands use generated tokenizers and text files in full, or refuse them.

``python -m tests.attack.inputs --only NUMBER`` repeats a failed case.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from command.arguments import ROOT
from tests.attack.inputs import InputCase, find_problem, write_case


def test_generated_tokenizers_and_texts_are_used_in_full_or_refused() -> None:
    words = [sys.executable, "-m", "tests.attack.inputs", "--cases", "20", "--without-pages"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "20 cases" in done.stdout  # `make attack`: 600, with their pages


@pytest.mark.parametrize("number", [0, 1], ids=["tokenizer", "text"])
def test_a_case_is_repeated_by_its_number(number: int, tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    for folder in folders:
        (folder / "tok").mkdir(parents=True)
    first, second = (write_case(7, number, folder) for folder in folders)
    assert first == second


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        ((True, ["a"], 0, [0, 0, 0, 0], ""), ""),
        ((True, ["a"], 0, [2], "why"), ""),
        ((True, ["a"], 0, [0, 2], "why"), "prepare refuses what new accepted"),
        ((True, ["a"], 0, [0, 0, 4], "why"), "train ended with status 4"),
        ((True, ["a"], -1, [0], ""), "prepare took more than"),
        ((True, ["a"], -9, [0], ""), "the process ended with -9 in prepare"),
        ((False, ["a"], 0, [2], "why"), "new refuses a sound file"),
        ((False, None, 0, [0, 2], "why"), ""),
        ((False, None, 0, [0, 0, 2], "why"), "train refuses what prepare accepted"),
        ((False, None, 0, [2], "Traceback (most recent call last):"), "prints a traceback"),
    ],
)
def test_each_kind_of_failure_is_reported(ended, problem):
    is_tokenizer, documents, child, statuses, output = ended
    case = InputCase(commands=(), documents=documents, is_tokenizer=is_tokenizer)
    found = find_problem(case, child, statuses, output)
    assert problem in found
    assert bool(problem) == bool(found)
