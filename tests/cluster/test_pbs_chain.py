"""Runs on PBS, run whole by a stand-in: walls, killed ranks, bad nodes, a tree."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from cluster.records import Jobs
from cluster.status import RunStatus, status_of
from command.run_tree.nodes import nodes_of, state_of
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from tests.cluster import openpbs
from tests.cluster.planting import CLOCK, plant
from tests.cluster.programs import Patch
from tests.cluster.slurm import BUSY_HOST
from tests.cluster.test_preflight_life import verdict
from tests.cluster.test_slurm_life import ends_of_logs, rank_with, tell_times
from tests.life.conftest import TINY, act, entries

# A minute alone; hosts that are full take much longer.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

OWN = ("budget.total_tokens", "checkpoint.", "evaluation.")
SMALL = tuple(word for word in TINY if not word.startswith(OWN))
# Aurora, but for what this host does not have: tiles, modules, a proxy, Slingshot.
HERE = (
    *("cluster=aurora", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
    *("cluster.nodes=2", "cluster.devices_per_node=1", "site.account=kitchen"),
    *("cluster.site.modules=[]", "cluster.site.environment={}", "cluster.site.proxy=null"),
    "cluster.site.binding.cores=null",
    "cluster.preflight.product_fraction=0.01",  # the nodes share this host's cores
)
# Two ranks add the same fp32 numbers in another order; losses are near 6.
TOLERANCE = 2e-5


@pytest.fixture
def machine(home: Path, tmp_path: Path, monkeypatch: Patch) -> Iterator[str]:
    """Programs first on the path, and the ``venv`` that a job finds them by."""
    programs, state = home / "venv" / "bin", tmp_path / "state"
    for folder in (programs, state):
        folder.mkdir(parents=True, exist_ok=True)
    (programs / "python").unlink(missing_ok=True)  # one that a test has planted
    openpbs.link(programs, state)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    (programs / "activate").write_text(f"PATH={path}\n")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("OPENPBS_FOLDER", str(state))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield f"site.venv={home / 'venv'}"
    left = [file.stem for file in state.glob("[0-9]*.json")]
    openpbs.qdel([job for job in left if openpbs.read(job)["job_state"] != "F"])


def status(run: Path) -> RunStatus:
    return status_of(run, Pbs())


def wait_until(run: Path, holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + BUSY_HOST * seconds
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"{status(run)}\n{ends_of_logs(run)}")
        time.sleep(0.3)


def test_next_job_continues_and_the_last_is_cancelled(home, machine, capfd):
    run, alone = home / "walled", home / "alone"
    budget = (
        *("budget.total_tokens=2_048", "checkpoint.every_tokens=1_024"),
        "evaluation.every_tokens=2_048",
    )
    # Of twelve minutes all but a second is for saving: the alarm rings while the ranks import
    # torch, so each job does its first step, sees the wish, does one more, and saves.
    hours = ("cluster.hours=0.2", "cluster.jobs=9", "cluster.site.spare_seconds=719")
    assert act(home, *SMALL, *HERE, machine, *budget, *hours, f"run={run}") == 0
    assert "a chain of at most 9 jobs of 2 nodes for 00:12:00" in capfd.readouterr().out
    assert act(home, *SMALL, *budget, f"run={alone}") == 0  # meanwhile
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 400)

    end = status(run)
    assert [job.job for job in end.jobs] == [openpbs.job_id(n) for n in (1, 2)]
    assert [(job.ended, job.tokens_at_end) for job in end.jobs] == [
        ("stopped", 1_024),
        ("finished", 2_048),
    ]
    assert end.jobs[1].tokens_at_begin == 1_024
    third = openpbs.read(openpbs.job_id(3))
    assert third["job_state"] == "F"
    assert "session" not in third  # it never began, and nobody waits behind it
    assert not (openpbs.folder() / f"{openpbs.job_id(4)}.json").exists()

    expected, found = entries(alone, "step"), entries(run, "step")
    assert [entry["step"] for entry in found] == [1, 2, 3, 4]
    for one, other in zip(expected, found, strict=True):
        assert one["samples_digest"] == other["samples_digest"]
        assert other["loss"] == pytest.approx(one["loss"], rel=TOLERANCE)


def rank_of(run: Path, rank: int) -> int:
    return rank_with(run, f"PALS_RANKID={rank}")


def test_killed_rank_is_named_and_its_node_avoided(home, machine, capfd):
    run = home / "killed"
    budget = (
        *("budget.total_tokens=51_200_000", "checkpoint.every_tokens=10_240"),
        "evaluation.every_tokens=51_200_000",
    )
    words = ("cluster.hours=0.5", "cluster.jobs=3", "cluster.site.spare_seconds=60")
    assert act(home, *SMALL, *HERE, machine, *budget, *words, f"run={run}") == 0
    wait_until(run, lambda: bool(entries(run, "checkpoint")), 200)
    os.kill(rank_of(run, 1), signal.SIGKILL)
    wait_until(run, lambda: len(status(run).jobs) == 2, 200)
    failed = status(run).jobs[0]
    node = openpbs.NODES[1]
    assert (failed.ended, failed.bad_nodes) == ("failed", (node,))
    assert failed.why == f"rank 1 on {node}: died from signal 9"
    assert f"the next job avoids {node}" in (run / "jobs" / f"{failed.job}.OU").read_text()

    steps = len(entries(run, "step"))
    wait_until(run, lambda: len(entries(run, "step")) > steps, 200)
    wait_until(run, lambda: len(status(run).queued or ()) == 2, 60)
    capfd.readouterr()
    assert act(home, "action=status", f"run={run}") == 0
    shown = capfd.readouterr().out
    assert failed.why in shown
    running, waiting = (job.job for job in status(run).queued or ())
    three = ",".join(openpbs.NODES[:3])  # one more than ranks need, for the avoided one
    assert f"job {running} on {three}" in " ".join(shown.split())
    others = " ".join((openpbs.NODES[0], openpbs.NODES[2]))
    launched = (openpbs.folder() / "ranks").read_text().splitlines()
    assert launched[-1].split(" ", 1)[1] == others
    assert act(home, "action=cancel", f"run={run}") == 0
    assert capfd.readouterr().out.splitlines() == [
        f"{running}: saves after the current step, then ends",
        f"{waiting}: cancelled",
    ]
    wait_until(run, lambda: not status(run).queued, 200)
    end = status(run)
    assert (end.state, len(end.jobs)) == ("stopped", 2)
    assert end.tokens == entries(run, "step")[-1]["tokens"]
    assert "session" not in openpbs.read(waiting)


STEPS = 60
SPARED = (
    *(f"budget.total_tokens={512 * STEPS}", "checkpoint.every_tokens=5_120"),
    *(f"evaluation.every_tokens={512 * STEPS}", "checkpoint.keep=99"),
)
JOB = ("cluster.hours=0.5", "cluster.jobs=3", "cluster.site.spare_seconds=60")


@pytest.mark.long
def test_same_job_continues_without_the_node_of_a_killed_rank(home: Path, machine: str) -> None:
    run = home / "spared"
    words = (*SMALL, *HERE, machine, *SPARED, *JOB, "cluster.spare_nodes=1")
    assert act(home, *words, f"run={run}") == 0
    wait_until(run, lambda: len(entries(run, "checkpoint")) >= 2, 200)
    killed = time.time()
    os.kill(rank_of(run, 1), signal.SIGKILL)
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 300)

    end = status(run)
    first, bad, spare, _ = openpbs.NODES
    job = openpbs.job_id(1)
    ends = [(one.job, one.attempt, one.ended) for one in end.jobs]
    assert ends == [(job, 0, "failed"), (job, 1, "finished")]
    assert end.jobs[0].why == f"rank 1 on {bad}: died from signal 9"
    assert end.jobs[0].bad_nodes == (bad,)
    assert end.jobs[1].nodes == (first, spare)
    launched = (openpbs.folder() / "ranks").read_text().splitlines()
    ranks = [line for line in launched if line.startswith("components.train ")]
    assert ranks == [f"components.train {first} {one}" for one in (bad, spare)]
    second = openpbs.read(openpbs.job_id(2))
    assert "session" not in second  # it waited for the whole time, and was taken back
    assert not (openpbs.folder() / f"{openpbs.job_id(3)}.json").exists()
    (restart,) = entries(run, "restart")
    left = {"nodes": [first, spare], "left_out": [bad]}
    assert restart["evidence"] == {"restart": 1, "job": job, **left}
    tell_times(run, killed)
    # Every step was taken, with the samples and the loss of a run that nothing happened to.
    alone = home / "undisturbed"
    assert act(home, *SMALL, *SPARED, f"run={alone}") == 0
    again = {entry["step"]: entry for entry in entries(run, "step")}
    assert sorted(again) == list(range(1, STEPS + 1))
    for one in entries(alone, "step"):
        assert one["samples_digest"] == again[one["step"]]["samples_digest"]
        assert again[one["step"]]["loss"] == pytest.approx(one["loss"], rel=TOLERANCE)


BRIEF = (
    *("budget.total_tokens=2_048", "checkpoint.every_tokens=1_024"),
    *("evaluation.every_tokens=2_048", "cluster.hours=0.5", "cluster.jobs=2"),
    "cluster.site.spare_seconds=60",
)
# Its clock is wrong, or its task ends without an answer.
PLANTED = f"""
import os
if os.environ["OPENPBS_NODE"] == "{{mute}}":
    os._exit(9)
{CLOCK}"""


@pytest.mark.long
def test_ranks_start_on_the_nodes_that_are_left(home: Path, machine: str) -> None:
    run = home / "bad"
    wrong, good, mute, other = openpbs.NODES
    text = PLANTED.format(mute=mute)
    venv = home / "venv"
    assert plant(venv, "OPENPBS_NODE", f"@({wrong}|{mute})", "sitecustomize.py", text)
    words = (*SMALL, *HERE, machine, *BRIEF, "cluster.spare_nodes=2")
    assert act(home, *words, "cluster.preflight.answer_seconds=60", f"run={run}") == 0
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 400)

    (job,) = status(run).jobs
    assert job.bad_nodes == (wrong, mute)
    event = verdict(run)
    assert event["evidence"]["excluded"] == {wrong: ["clock"], mute: ["answer"]}
    assert f"{wrong}: clock: +100." in event["cause"]
    started = (openpbs.folder() / "ranks").read_text().splitlines()
    assert started == [
        f"components.preflight {' '.join(openpbs.NODES)}",
        f"components.train {good} {other}",
    ]
    assert [entry["step"] for entry in entries(run, "step")] == [1, 2, 3, 4]
    said = (run / "jobs" / f"{job.job}.OU").read_text()
    assert "2 of 4 nodes are good, 2 are needed" in said
    log = (run / "ranks" / f"{job.job.partition('.')[0]}-preflight.log").read_text()
    assert f"{mute}: rank 2 exited with 9" in log


TREE = (
    "children.cooled={at_tokens: 1024, with: optimizer, set: {budget.total_tokens: 1536}}",
    "children.mean={at_tokens: 2048, merge: {last: 2}}",
    "children.judged={of: cooled, evaluate: {}}",
)


@pytest.mark.long
def test_jobs_of_a_tree_submit_what_follows(home: Path, machine: str) -> None:
    here = [word for word in HERE if not word.startswith("cluster.nodes")]
    own = (
        *("budget.total_tokens=2_048", "checkpoint.every_tokens=512"),
        *("evaluation.every_tokens=2_048", "cluster.nodes=1", "cluster.hours=0.5"),
    )
    trunk = home / "trunk"
    assert act(home, *SMALL, *here, machine, *own, *TREE, f"run={trunk}") == 0
    nodes = {node.name: node for node in nodes_of(trunk)}
    assert {state_of(node) for node in nodes.values()} == {"waiting"}

    def grown() -> bool:
        return {state_of(node) for node in nodes.values()} == {"finished"}

    wait_until(trunk, grown, 600)
    jobs = [openpbs.read(file.stem) for file in openpbs.folder().glob("[0-9]*.json")]
    assert sorted(job["Job_Name"] for job in jobs) == [
        "teuken7b",
        *(f"teuken7b-{name}" for name in ("cooled", "judged", "mean")),
    ]
    cooled = nodes["cooled"].folder_path
    assert [one["tokens"] for one in entries(cooled, "step")][-1] == 1_536
    assert len(Jobs(RunFolder(cooled)).load_chain().submissions) == 1
    assert {one["tokens_trained"] for one in read_evaluations(cooled)} == {1_536}
