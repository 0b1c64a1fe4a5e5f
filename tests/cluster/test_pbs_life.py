"""A real OpenPBS: what it says of jobs that wait, end and are run again, and whole chains."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from tests.cluster.pbs_server import LocalPbs, local_pbs

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]

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
    """Two nodes; the server keeps no history unless a test asks for it."""
    with local_pbs(2) as server:
        yield server


@pytest.fixture
def submit(pbs: LocalPbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
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
        return Pbs().submit(tmp_path / "script", after=after)

    return hand_over


def states(job: str, tmp_path: Path) -> list[tuple[str, str]]:
    return [(one.state, one.why) for one in Pbs().states(job, tmp_path / "jobs")]


def letter(job: str) -> str:
    tree = Pbs()._describe(job)
    return "" if tree is None else str(tree["job_state"])


@pytest.mark.parametrize("kept", [False, True])
def test_a_job_killed_at_its_wall_is_told_where_history_is_kept_and_gone_where_not(
    pbs: LocalPbs, submit: Submit, tmp_path: Path, *, kept: bool
) -> None:
    pbs.keep_history(kept=kept)
    job = submit(60, wall="00:00:03")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    (running,) = Pbs().states(job, tmp_path / "jobs")
    assert (running.state, running.nodes) == ("running", "n1")
    pbs.wait_for(lambda: letter(job) in {"", "F"}, 60)
    assert states(job, tmp_path) == []
    assert Pbs().fate(job) == ("wall" if kept else "gone")
    assert (tmp_path / "jobs" / f"{job}.OU").exists()
    Pbs().cancel(job, tmp_path / "jobs", running=True)  # nothing left, nothing said


def test_a_chain_is_followed_and_its_held_jobs_say_why(
    pbs: LocalPbs, submit: Submit, tmp_path: Path
) -> None:
    first = submit()
    second = submit(after=first)
    pbs.wait_for(lambda: letter(first) == "R", 30)
    running, waiting = Pbs().states(first, tmp_path / "jobs")
    assert (running.job, waiting.job) == (first, second)
    assert waiting.why == "waits for the job before it"
    third = submit(after=second)
    pbs.call("qhold", third)
    assert states(third, tmp_path) == [("pending", "was held by its user: qrls it")]
    pbs.call("qhold", "-h", "o", third)
    assert "ask the site" in states(third, tmp_path)[0][1]
    Pbs().cancel(first, tmp_path / "jobs", running=True)
    pbs.wait_for(lambda: not states(first, tmp_path), 60)
    assert {letter(job) for job in (first, second, third)} == {""}


def test_a_job_that_is_run_again_was_put_back(
    pbs: LocalPbs, submit: Submit, tmp_path: Path
) -> None:
    job = submit(rerun="y")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    pbs.call("qmgr", "-c", "set server scheduling=False")
    try:
        pbs.call("qrerun", job)
        pbs.wait_for(lambda: letter(job) == "Q", 30)
        assert Pbs().fate(job) == "put back"
        assert states(job, tmp_path)[0][0] == "pending"
    finally:
        pbs.call("qmgr", "-c", "set server scheduling=True")
    pbs.wait_for(lambda: letter(job) == "R", 30)
    Pbs().cancel(job, tmp_path / "jobs", running=True)
    pbs.wait_for(lambda: letter(job) == "", 60)
