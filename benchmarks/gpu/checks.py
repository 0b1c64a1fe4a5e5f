"""Cases that ask other programs of this repository: tests, peaks, guards, checkpoints."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import yaml

from benchmarks.gpu.device import this_device
from benchmarks.gpu.ours import join_world
from benchmarks.peaks import main as measure_peaks
from benchmarks.training import guards as guarded
from benchmarks.training.checkpoints import Weights, make_saver, save_once
from command.arguments import ROOT
from components.child_process import python_environment

Found = dict[str, Any]
MESSAGE_CHARACTERS = 2_000
SLOWEST = 5


def run_tests(places: Sequence[str]) -> Found:
    """Run tests, and keep how many passed, which did not, and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *places]
        # Workers are many, and each starts programs: one thread each, as `make test` has it.
        environment = python_environment(os.environ | {"OMP_NUM_THREADS": "1"})
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environment
        )
        if done.returncode not in {0, 1}:  # it ran no tests, or not to their end
            said = f"{done.stdout}{done.stderr}"
            raise RuntimeError(f"pytest ended with {done.returncode}\n{said}")
        return summary_of(ElementTree.parse(report).getroot())


def summary_of(report: ElementTree.Element) -> Found:
    """Count the cases of a JUnit report, and name the slowest; of failures keep the message."""
    outcomes: dict[str, list[Found]] = {"failure": [], "error": [], "skipped": []}
    cases = list(report.iter("testcase"))
    for case in cases:
        for kind, found in outcomes.items():
            if (said := case.find(kind)) is not None:
                # What is kept is published: not where the checkout lay.
                message = (said.get("message") or "").replace(str(ROOT), "CHECKOUT")
                found.append({"test": _name(case), "message": message[:MESSAGE_CHARACTERS]})
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


def peaks(words: Sequence[str] = ()) -> Found:
    """Measure what the device reaches, and what the products of a recipe's layers do."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        measure_peaks(words)
    found: Found = yaml.safe_load(said.getvalue())
    return found


def guards(words: list[str], pairs: int = guarded.PAIRS) -> Found:
    """Take steps with and without guards in turns."""
    return guarded.measure(words, pairs=pairs)


def stall(layers: int, dim: int, rounds: int) -> Found:
    """Save weights that lie on the device, and say for how long its steps stand still."""
    device = this_device()
    join_world(device)
    state = Weights(layers, dim, device)
    found: Found = {"bytes": state.bytes}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("synchronous", "asynchronous"):
            place = Path(folder) / name
            place.mkdir()
            saver = make_saver(place, asynchronous=name == "asynchronous", device=device)
            # The first one makes the buffers.
            saved = [save_once(saver, state, turn) for turn in range(1, rounds + 2)][1:]
            saver.close()
            found[name] = {
                "seconds": median(one.seconds for one in saved),
                "stall_seconds": median(one.stall_seconds for one in saved),
            }
    return found
