"""Mutated files and command lines end with a message, and do nothing else.

``python -m tests.attack.fuzz --only NUMBER`` repeats a case that failed.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from command.arguments import ROOT
from tests.attack.driver import BROKEN, TOO_LONG, Result
from tests.attack.fuzz import TARGETS, case_of, failed

SEED = 7


def fuzz(*words: str) -> str:
    """Run the fuzzer as a program and return what it found."""
    whole = [sys.executable, "-m", "tests.attack.fuzz", *words]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def result(**changed: object) -> Result:
    plain: dict[str, object] = {"name": "x", "status": 2, "seconds": 0.1, "said": "why"}
    return Result(**{**plain, "acts": [], "stray": [], **changed})  # type: ignore[arg-type]  # a mix of types


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_mutation_ends_with_a_traceback_or_acts() -> None:
    assert "300 cases" in fuzz("--seed", "11", "--cases", "300")  # `make attack`: 2,000


def test_a_case_is_repeated_by_its_number() -> None:
    assert case_of(SEED, 42) == case_of(SEED, 42)
    assert case_of(SEED, 42) != case_of(SEED + 1, 42)


def test_cases_are_of_every_kind_and_none_trains() -> None:
    cases = [case_of(SEED, number) for number in range(2_000)]
    kinds = Counter(case.kind for case in cases)
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
        ({"said": "the-secret-of-somebody"}, "secret"),
        ({}, ""),
    ],
)
def test_what_must_not_be_is_seen(changed: dict[str, object], problem: str) -> None:
    found = failed(result(**changed))
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.long
def test_the_fuzzer_names_a_failing_case(tmp_path: Path) -> None:
    words = ["--seed", str(SEED), "--only", "3"]
    assert "1 cases" in fuzz(*words)
