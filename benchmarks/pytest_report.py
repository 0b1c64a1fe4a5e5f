"""Run pytest with a given Python and summarize its report."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.results_store import ROOT
from components.child_process import python_environment

MESSAGE_CHARACTERS = 2_000
SLOWEST = 5


def run_pytest(python: str, words: Sequence[str]) -> dict[str, Any]:
    """Run tests; return the number of passes, the other outcomes and the slowest tests.

    Raises:
        RuntimeError: pytest ran no tests or was interrupted.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        # Many workers start programs, so each gets one thread, as in `make test`.
        environment = python_environment(os.environ | {"OMP_NUM_THREADS": "1"})
        done = subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=ROOT, capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        if done.returncode not in {0, 1}:
            output = f"{done.stdout}{done.stderr}"
            raise RuntimeError(f"pytest ended with {done.returncode}\n{output[-4_000:]}")
        return summarize_report(ElementTree.parse(report).getroot())


def summarize_report(report: ElementTree.Element) -> dict[str, Any]:
    """Return the outcomes of a JUnit report, messages of failures and the slowest tests."""
    outcomes: dict[str, list[dict[str, Any]]] = {"failure": [], "error": [], "skipped": []}
    cases = list(report.iter("testcase"))
    for case in cases:
        for kind, entries in outcomes.items():
            if (outcome := case.find(kind)) is not None:
                # Results are published, without the path of the checkout.
                message = (outcome.get("message") or "").replace(str(ROOT), "CHECKOUT")
                entries.append({"test": _name(case), "message": message[:MESSAGE_CHARACTERS]})
    passed = len(cases) - sum(map(len, outcomes.values()))
    slowest = sorted(cases, key=_seconds, reverse=True)[:SLOWEST]
    return {
        "passed": passed,
        **outcomes,
        "slowest": [{"test": _name(case), "seconds": _seconds(case)} for case in slowest],
    }


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def _seconds(case: ElementTree.Element) -> float:
    return float(case.get("time", 0))
