"""Mutated files and command lines end with a message and have no other effect.

``python -m tests.attack.fuzz --only NUMBER`` repeats a failed case.
"""

import subprocess
import sys
from collections import Counter

import pytest

from command.arguments import ROOT
from tests.attack.changes import SECRET
from tests.attack.driver import BROKEN, TOO_LONG, Result
from tests.attack.fuzz import TARGETS, case_of, failed

SEED = 7


def make_result(**changed: object) -> Result:
    plain: dict[str, object] = {"name": "x", "status": 2, "seconds": 0.1, "said": "why"}
    return Result(**{**plain, "acts": [], "stray": [], **changed})  # type: ignore[arg-type]  # a mix of types


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_mutation_ends_with_a_traceback_or_acts() -> None:
    words = [sys.executable, "-m", "tests.attack.fuzz", "--seed", "11", "--cases", "150"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "150 cases" in done.stdout  # `make attack`: 2,000


def test_cases_are_of_every_kind_and_none_trains() -> None:
    cases = [case_of(SEED, number) for number in range(2_000)]
    kinds = Counter(case.kind for case in cases)
    assert case_of(SEED, 42) == cases[42] != case_of(SEED + 1, 42)  # repeated by its number
    assert kinds.keys() == {*TARGETS, "words"}
    assert min(kinds.values()) >= 50
    harmless = ("action=", "resume=run")
    assert all(any(word.startswith(harmless) for word in case.words) for case in cases)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"status": TOO_LONG}, "more than"),
        ({"said": "Traceback (most recent call last):\nKeyError: 1"}, "KeyError"),
        ({"status": 4, "said": "a fault"}, "exit status 4"),
        ({"status": BROKEN}, "exit status"),
        ({"stray": ["outside/ran"]}, "outside/ran"),
        ({"acts": ["runs scancel"]}, "scancel"),
        ({"said": "\x1b[2J"}, "raw controls"),
        ({"said": SECRET}, "secret"),
        ({}, ""),
    ],
)
def test_each_kind_of_failure_is_reported(changed: dict[str, object], problem: str) -> None:
    found = failed(make_result(**changed))
    assert problem in found
    assert bool(problem) == bool(found)
