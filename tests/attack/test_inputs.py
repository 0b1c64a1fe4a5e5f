"""Generated tokenizers and text files pass through the commands or are refused, whole.

``python -m tests.attack.inputs --only NUMBER`` repeats a case that failed.
"""

import subprocess
import sys

import pytest

from command.arguments import ROOT
from tests.attack.inputs import InputCase, find_problem


def test_tokenizers_and_files_are_trained_on_whole_or_refused() -> None:
    words = [sys.executable, "-m", "tests.attack.inputs", "--cases", "30"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "30 cases" in done.stdout  # `make attack`: 600


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
def test_what_must_not_be_is_seen(
    ended: tuple[bool, list[str] | None, int, list[int], str], problem: str
) -> None:
    is_tokenizer, documents, child, statuses, output = ended
    case = InputCase(commands=(), documents=documents, is_tokenizer=is_tokenizer)
    found = find_problem(case, child, statuses, output)
    assert problem in found
    assert bool(problem) == bool(found)
