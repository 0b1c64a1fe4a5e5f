"""The stand-in for OpenPBS beside the real one: asked the same, both say the same."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster import openpbs
from tests.cluster.pbs_server import LocalPbs, local_pbs

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

SCRIPT = """#!/bin/bash
#PBS -N sleeper
#PBS -l select=1:ncpus=208
#PBS -l walltime=00:10:00
#PBS -j oe
#PBS -o {folder}/
sleep {seconds}
"""
JSON = ("-f", "-F", "json")
Said = tuple[int, str]


@pytest.fixture(scope="module")
def pbs() -> Iterator[LocalPbs]:
    with local_pbs(1) as server:
        yield server


class Side:
    """One of both, by its own programs and their environment."""

    def __init__(self, programs: Path, environment: Mapping[str, str], folder: Path) -> None:
        self._programs = programs
        self._environment = environment
        self._folder = folder

    def ask(self, *words: str) -> Said:
        """Return status and errors, with each job's id as ID."""
        done = self._run(words)
        lines = re.sub(r"\b\d+\.pbs[-\w]*", "ID", done.stderr).strip().splitlines()
        return done.returncode, lines[0] if lines else ""

    def submit(self, seconds: int, *words: str) -> str:
        return self._run(("qsub", *words, str(self.script(seconds)))).stdout.strip()

    def script(self, seconds: int) -> Path:
        file = self._folder / "script"
        file.write_text(SCRIPT.format(folder=self._folder, seconds=seconds))
        return file

    def state(self, job: str, *options: str) -> str:
        found = re.search(
            r'"job_state":\s*"(\w)"', self._run(("qstat", *options, *JSON, job)).stdout
        )
        return found[1] if found else ""

    def reach(self, pbs: LocalPbs, job: str, letter: str, *options: str) -> None:
        """Wait until a job has a state; none is that of one that is forgotten."""
        pbs.wait_for(lambda: self.state(job, *options) == letter, 60)

    def _run(self, words: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self._programs / words[0]), *words[1:]],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def both(pbs: LocalPbs, tmp_path: Path) -> Callable[..., tuple[Side, Side]]:
    """The server and the stand-in, both with a history of jobs or without."""

    def make(*, history: bool) -> tuple[Side, Side]:
        pbs.keep_history(kept=history)
        programs, state = tmp_path / "programs", tmp_path / "state"
        for folder in (programs, state):
            folder.mkdir()
        openpbs.link(programs, state)
        off = {} if history else {"OPENPBS_HISTORY": "off"}
        return (
            Side(pbs.programs, os.environ, tmp_path),
            Side(programs, {**os.environ, **off}, tmp_path),
        )

    return make


def test_without_history_both_say_the_same(
    pbs: LocalPbs, both: Callable[..., tuple[Side, Side]]
) -> None:
    answers = []
    for side in both(history=False):
        job = side.submit(1)
        side.reach(pbs, job, "R")
        heard = [side.ask("qstat", "-x", *JSON, job)]
        side.reach(pbs, job, "")
        heard += [side.ask("qstat", *JSON, job), side.ask("qdel", job)]
        answers.append(heard)
    assert answers[0] == answers[1]


def test_with_history_both_say_the_same(
    pbs: LocalPbs, both: Callable[..., tuple[Side, Side]]
) -> None:
    answers = []
    for side in both(history=True):
        ended, running = side.submit(0), side.submit(60)
        side.reach(pbs, ended, "F", "-x")
        side.reach(pbs, running, "R")
        unknown = re.sub(r"^\d+", "99999", ended)
        waits = side.submit(60, "-W", f"depend=afterany:{running}")
        after = side.submit(60, "-W", f"depend=afterany:{ended}")
        script = str(side.script(1))
        heard = [
            *(side.ask("qstat", *JSON, job) for job in (ended, unknown)),
            side.ask("qstat", "-x", *JSON, unknown),
            *(side.ask("qdel", job) for job in (ended, unknown)),
            *(side.ask("qalter", "-l", "select=1:ncpus=1", job) for job in (running, waits)),
            side.ask("qsub", "-W", f"depend=afterany:{unknown}", script),
            side.ask("qsub", "-W", "depend=whenever:1", script),
            (0, f"{side.state(waits)}{bool(after)}"),
            side.ask("qdel", after, waits, running),
        ]
        side.reach(pbs, running, "F", "-x")
        answers.append(heard)
    assert answers[0] == answers[1]
