"""A real OpenPBS: jobs that wait, end and run again, and whole chains."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from command.main import main
from data_prep.task import read_array
from tests.cluster import openpbs
from tests.cluster.pbs_server import LocalPbs, local_pbs
from tests.cluster.programs import Capture, Patch
from tests.cluster.test_corpus_life import ELEMENTS, passes, prepared
from tests.cluster.test_pbs_chain import HERE, SMALL, rank_of, status
from tests.cluster.test_slurm_life import wait_until
from tests.data_prep.corpora import LANGUAGES, write_corpus
from tests.life.conftest import act, entries

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

SCRIPT = """#!/bin/bash
#PBS -N sleeper
#PBS -l select=1:ncpus=208
#PBS -l walltime={wall}
#PBS -r {rerun}
#PBS -j oe
#PBS -o {folder}/
sleep {seconds}
"""
Submit = Callable[..., str]


@pytest.fixture(scope="module")
def pbs() -> Iterator[LocalPbs]:
    """Three nodes; the server keeps no history unless a test asks for it."""
    with local_pbs(3) as server:
        yield server


@pytest.fixture
def submit(pbs: LocalPbs, tmp_path: Path, monkeypatch: Patch) -> Submit:
    """Submit a script that sleeps; its output comes to ``tmp_path/jobs``."""
    monkeypatch.setenv("PATH", pbs.environment()["PATH"])
    pbs.keep_history(kept=False)
    (tmp_path / "jobs").mkdir()

    def hand_over(
        seconds: int = 60, *, wall: str = "00:10:00", after: str | None = None, rerun: str = "n"
    ) -> str:
        folder = tmp_path / "jobs"
        text = SCRIPT.format(wall=wall, rerun=rerun, folder=folder, seconds=seconds)
        (tmp_path / "script").write_text(text)
        return Pbs().submit_script(tmp_path / "script", after=after)

    return hand_over


def states(job: str, tmp_path: Path) -> list[tuple[str, str]]:
    return [(one.state, one.why) for one in Pbs().list_jobs(job, tmp_path / "jobs")]


def letter(job: str) -> str:
    described = Pbs()._ask(job)
    return "" if described is None else str(described.popitem()[1]["job_state"])


@pytest.mark.parametrize("kept", [False, True])
def test_job_killed_at_its_wall_is_known_where_history_is_kept(
    pbs: LocalPbs, submit: Submit, tmp_path: Path, *, kept: bool
) -> None:
    pbs.keep_history(kept=kept)
    job = submit(60, wall="00:00:03")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    (running,) = Pbs().list_jobs(job, tmp_path / "jobs")
    assert (running.state, running.nodes) == ("running", "n1")
    pbs.wait_for(lambda: letter(job) in {"", "F"}, 60)
    assert states(job, tmp_path) == []
    assert Pbs().find_exit_reason(job) == ("wall" if kept else "gone")
    assert (tmp_path / "jobs" / f"{job}.OU").exists()
    Pbs().cancel_jobs(job, tmp_path / "jobs", running=True)  # nothing left, nothing said


def test_held_jobs_of_a_chain_have_reasons(pbs, submit, tmp_path):
    first = submit()
    second = submit(after=first)
    pbs.wait_for(lambda: letter(first) == "R", 30)
    running, waiting = Pbs().list_jobs(first, tmp_path / "jobs")
    assert (running.job, waiting.job) == (first, second)
    assert waiting.why == "waits for the previous job"
    third = submit(after=second)
    pbs.call("qhold", third)
    ((state, why),) = states(third, tmp_path)
    assert state == "pending"
    assert re.fullmatch(r"Job held by root on .*; is held \(Hold_Types=u\): release .*", why)
    pbs.call("qhold", "-h", "o", third)
    assert "; is held (Hold_Types=" in states(third, tmp_path)[0][1]
    Pbs().cancel_jobs(first, tmp_path / "jobs", running=True)
    pbs.wait_for(lambda: not states(first, tmp_path), 60)
    assert {letter(job) for job in (first, second, third)} == {""}


def test_job_run_again_was_put_back(pbs: LocalPbs, submit: Submit, tmp_path: Path) -> None:
    job = submit(rerun="y")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    pbs.call("qmgr", "-c", "set server scheduling=False")
    try:
        pbs.call("qrerun", job)
        pbs.wait_for(lambda: letter(job) == "Q", 30)
        assert Pbs().find_exit_reason(job) == "put back"
        assert states(job, tmp_path)[0][0] == "pending"
    finally:
        pbs.call("qmgr", "-c", "set server scheduling=True")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    Pbs().cancel_jobs(job, tmp_path / "jobs", running=True)
    pbs.wait_for(lambda: letter(job) == "", 60)


@pytest.fixture
def here(pbs: LocalPbs, home: Path, monkeypatch: Patch) -> str:
    """Stand in that folder; say by which environment jobs find PBS's programs and Python."""
    pbs.keep_history(kept=False)
    path = f"{pbs.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    (home / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    (home / "venv" / "bin" / "activate").write_text(
        f"export PATH={path} OMP_NUM_THREADS=1 OPENPBS_HOSTS=1\n"
    )
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(home)
    return f"site.venv={home / 'venv'}"


def test_next_job_continues_after_a_job_killed_at_its_time_limit(pbs, home, here):
    pbs.keep_history(kept=True)
    run = home / "walled"
    budget = (
        *("budget.total_tokens=51_200_000", "checkpoint.every_tokens=10_240"),
        "evaluation.every_tokens=51_200_000",
    )
    words = ("cluster.hours=0.05", "cluster.jobs=3", "cluster.site.spare_seconds=60")
    assert act(home, *SMALL, *HERE, here, *budget, *words, f"run={run}") == 0
    wait_until(pbs, run, lambda: bool(entries(run, "checkpoint")), 250)
    os.kill(rank_of(run, 1), signal.SIGSTOP)  # it hears no warning
    (first,) = status(run).jobs
    wait_until(pbs, run, lambda: len(status(run).jobs) == 2, 300)
    walled, second = status(run).jobs
    assert (walled.job, walled.ended, walled.fate) == (first.job, "lost", "wall")
    assert second.tokens_at_begin >= 10_240
    Pbs().cancel_jobs(first.job, run / "jobs", running=True)
    wait_until(pbs, run, lambda: not status(run).queued, 100)


def test_array_of_pbs_gives_the_same_bytes(home: Path, here: str, capsys: Capture) -> None:
    write_corpus(home / "texts")
    sources = {name: {"files": [f"{home}/texts/{name}*"]} for name in LANGUAGES}
    words = [
        *(word for word in SMALL if not word.startswith("data.")),
        *(*HERE, "action=prepare", "cluster.hours=0.2", here),
        f"data.sources={sources}".replace("'", ""),
        "data.shares={de: 0.4, en: 0.3, fr: 0.3}",
        *("preparation=engine", "data.preparation.shard_bytes=2_000"),
        "data.preparation.exact_duplicates={unit: document}",
        *("data.preparation.most_jobs=3", "data.preparation.workers=1"),
    ]
    assert main([*words, "data.preparation.executor=array"]) == 0
    queued = prepared(capsys)
    for name, elements in ELEMENTS.items():
        (folder,) = passes(home, name)
        array = read_array(folder)
        assert array is not None
        assert len(array.groups) == elements
        number = str(array.job).partition("[")[0]
        assert len(list((folder / "jobs").glob(f"{number}[[]*.OU"))) == elements
    assert main([*words, "data.folder=here"]) == 0
    assert prepared(capsys) == queued
    manifests = [(home / root / queued / "manifest.json") for root in ("prepared", "here")]
    assert manifests[0].read_bytes() == manifests[1].read_bytes()


JSON = ("-f", "-F", "json")
Both = Callable[..., "tuple[Side, Side]"]


class Side:
    """The server or its stand-in, by its own programs and their environment."""

    def __init__(self, programs: Path, environment: Mapping[str, str], folder: Path) -> None:
        self._programs, self._environment, self._folder = programs, environment, folder

    def ask(self, *words: str) -> tuple[int, str]:
        """Return status and errors, with each job's id as ID."""
        done = self._run(words)
        lines = re.sub(r"\b\d+\.pbs[-\w]*", "ID", done.stderr).strip().splitlines()
        return done.returncode, lines[0] if lines else ""

    def submit(self, seconds: int, *words: str) -> str:
        return self._run(("qsub", *words, str(self.script(seconds)))).stdout.strip()

    def script(self, seconds: int) -> Path:
        text = {"wall": "00:10:00", "rerun": "n", "folder": self._folder, "seconds": seconds}
        (self._folder / "script").write_text(SCRIPT.format(**text))
        return self._folder / "script"

    def state(self, job: str, *options: str) -> str:
        said = self._run(("qstat", *options, *JSON, job)).stdout
        found = re.search(r'"job_state":\s*"(\w)"', said)
        return found[1] if found else ""

    def reach(self, pbs: LocalPbs, job: str, letter: str, *options: str) -> None:
        """Wait until a job has a state. A forgotten job has an empty state."""
        pbs.wait_for(lambda: self.state(job, *options) == letter, 60)

    def _run(self, words: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
        command, env = [str(self._programs / words[0]), *words[1:]], self._environment
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def both(pbs: LocalPbs, tmp_path: Path) -> Both:
    """The server and the stand-in, both with a history of jobs or without."""

    def make(*, history: bool) -> tuple[Side, Side]:
        pbs.keep_history(kept=history)
        programs, state = tmp_path / "programs", tmp_path / "state"
        for folder in (programs, state):
            folder.mkdir()
        openpbs.link(programs, state)
        off = {} if history else {"OPENPBS_HISTORY": "off"}
        real = Side(pbs.programs, os.environ, tmp_path)
        return real, Side(programs, {**os.environ, **off}, tmp_path)

    return make


def test_stand_in_without_history_says_the_same(pbs: LocalPbs, both: Both) -> None:
    answers = []
    for side in both(history=False):
        job = side.submit(1)
        side.reach(pbs, job, "R")
        heard = [side.ask("qstat", "-x", *JSON, job)]
        side.reach(pbs, job, "")
        heard += [side.ask("qstat", *JSON, job), side.ask("qdel", job)]
        answers.append(heard)
    assert answers[0] == answers[1]


def test_stand_in_with_history_says_the_same(pbs: LocalPbs, both: Both) -> None:
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
