"""Every attack of the corpus: its end, and the acts that interpreter and kernel report."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from command.arguments import ROOT
from tests.attack.changes import SECRET
from tests.attack.corpus import Expected, corpus
from tests.attack.driver import LIMIT_SECONDS, TOO_LONG, Case, Result
from tests.attack.traced import TRACER, acts_by_case

ALL = "ATTACK_ALL"  # `make attack` asks for every attack with every action
# Without it, one action of each: every so many of these. Only `make long` traces.
EVERY = {"a sample": 40, "a quarter, traced": 4}
# Control characters, also of C1, and characters that reverse text.
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
TRACED = shutil.which("strace") is not None
# Cases that act on purpose: the detectors must report them.
ACTING = {
    "acting-program": ["execve", "runs touch"],
    "acting-connection": ["connect(", "connects to"],
    "acting-writer": ["outside/ran", "outside/ran"],
    "acting-import": ["planted", "imported planted"],
}


@dataclass(frozen=True)
class Outcome:
    """The chosen cases, their results, and if traced their system calls by name."""

    chosen: list[Expected]
    results: Mapping[str, Result]
    calls: Mapping[str, list[str]] | None


def one_of_each() -> list[Expected]:
    """Take one action of each attack, or all."""
    if os.environ.get(ALL):
        return list(corpus())
    first = {one.case.name.rpartition("-")[0]: one for one in reversed(corpus())}
    return list(first.values())


def run_cases(
    work: Path, cases: list[Case], module: str, *, traced: bool
) -> tuple[dict[str, Result], dict[str, list[str]] | None]:
    """Run the cases in one program; return their results and, if traced, their calls."""
    words = [sys.executable, "-m", module, str(work)]
    trace = work.with_suffix(".trace")
    tracer = [*TRACER, str(trace)] if traced else []
    done = subprocess.run(
        [*tracer, *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        input=json.dumps([asdict(case) for case in cases]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads((work / "results.json").read_text("utf-8"))
    by_name = {result["name"]: Result(**result) for result in results}
    return by_name, acts_by_case(trace) if traced else None


TRACED_LONG = pytest.param("a quarter, traced", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["a sample", TRACED_LONG])
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    traced = TRACED and request.param != "a sample"
    every = 1 if traced and os.environ.get(ALL) else EVERY[request.param]
    chosen = one_of_each()[::every]
    cases, work = [one.case for one in chosen], tmp_path_factory.mktemp("attack") / "work"
    return Outcome(chosen, *run_cases(work, cases, "tests.attack.driver", traced=traced))


def wrong(expected: Expected, result: Result) -> str:
    """Return what is wrong, or nothing."""
    said, status = result.said, result.status
    if status == TOO_LONG:
        return f"took more than {LIMIT_SECONDS} s"
    if "Traceback (most recent" in said:
        return f"a traceback: {said.strip().splitlines()[-1]}"
    if status not in expected.status:
        return f"exit status {status}, not {expected.status}: {said[:300]}"
    missing = [piece for piece in expected.says if piece not in said]
    if missing:
        return f"does not say {missing}: {said[:300]}"
    if raw := RAW.search(said):
        return f"the character U+{ord(raw.group()):04X} is printed"
    return "tells a secret" if SECRET in said else ""


def listed(found: Mapping[str, object]) -> list[str]:
    """Return the cases with findings."""
    return [f"{name}: {what}" for name, what in found.items() if what]


@pytest.mark.timeout(3600)
def test_every_attack_has_its_status_and_message(outcome: Outcome) -> None:
    found = {
        one.case.name: wrong(one, outcome.results[one.case.name]) for one in outcome.chosen
    }
    assert not (lines := listed(found)), "\n".join(lines)


def test_no_attack_runs_connects_imports_or_changes_anything_outside(outcome: Outcome) -> None:
    found = {name: [*one.acts, *one.stray] for name, one in outcome.results.items()}
    assert not (lines := listed(found)), "\n".join(lines)


@pytest.mark.skipif(not TRACED, reason="strace is not installed here")
@pytest.mark.parametrize("outcome", [TRACED_LONG], indirect=True)
def test_system_calls_only_read_or_change_the_own_folder(outcome: Outcome) -> None:
    assert outcome.calls is not None
    assert outcome.calls.keys() == outcome.results.keys(), "the trace is not whole"
    assert not (lines := listed(outcome.calls)), "\n".join(lines)


def test_the_corpus_is_large_and_has_every_kind_of_file() -> None:
    kinds = Counter(one.case.kind for one in corpus())
    assert sum(kinds.values()) >= 300
    assert min(kinds.values()) >= 6, kinds
    assert len(kinds) == 17


def test_detectors_report_deliberate_acts(tmp_path: Path) -> None:
    cases = [Case(name=name, kind="recipe", words=[name]) for name in ACTING]
    results, calls = run_cases(tmp_path / "work", cases, "tests.attack.acting", traced=TRACED)
    for name, (call, event) in ACTING.items():
        result = results[name]
        assert any(event in act for act in result.acts), (name, result)
        # An import is reading: the planted package writes.
        if calls is not None and call != "planted":
            assert any(call in act for act in calls[name]), (name, calls)
    assert "outside/ran" in results["acting-writer"].stray
    assert "outside/ran" in results["acting-import"].stray


# The table of attacks in the documentation names existing cases.
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
