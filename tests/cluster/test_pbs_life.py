"""A real OpenPBS: what it says of jobs that wait, end and are run again, and whole chains."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from cluster.status import RunStatus, status_of
from command.main import main
from data_prep.task import read_array
from tests.cluster.pbs_server import LocalPbs, local_pbs
from tests.cluster.programs import Patch, Said
from tests.cluster.test_corpus_life import ELEMENTS, passes, prepared
from tests.cluster.test_pbs_chain import HERE, SMALL, rank_of
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


def test_chain_is_followed_and_held_jobs_say_why(
    pbs: LocalPbs, submit: Submit, tmp_path: Path
) -> None:
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


def test_job_that_is_run_again_was_put_back(
    pbs: LocalPbs, submit: Submit, tmp_path: Path
) -> None:
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


def status(run: Path) -> RunStatus:
    return status_of(run, Pbs())


def wait_until(pbs: LocalPbs, run: Path, holds: Callable[[], bool], seconds: float) -> None:
    try:
        pbs.wait_for(holds, seconds)
    except AssertionError:
        logs = sorted([*(run / "jobs").glob("*.OU"), *(run / "ranks").glob("*.log")])
        said = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)
        pytest.fail(f"{status(run)}\n{said}")


def test_next_job_goes_on_from_what_one_killed_at_its_wall_saved(
    pbs: LocalPbs, home: Path, here: str
) -> None:
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


def test_array_of_pbs_gives_the_bytes_of_this_machine(
    home: Path, here: str, capsys: Said
) -> None:
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
