"""A chain on PBS, run whole by a stand-in: over the wall, a killed rank, a cancellation."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.pbs import Pbs
from cluster.status import RunStatus, status_of
from tests.cluster import openpbs
from tests.cluster.slurm import BUSY_HOST
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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder shared by a file's tests, so that data is prepared once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def machine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Programs first on the path, and the ``venv`` that a job finds them by."""
    programs, state = home / "venv" / "bin", tmp_path / "state"
    for folder in (programs, state):
        folder.mkdir(parents=True, exist_ok=True)
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
            logs = sorted([*(run / "jobs").glob("*.OU"), *(run / "ranks").glob("*.log")])
            said = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)
            pytest.fail(f"{status(run)}\n{said}")
        time.sleep(0.3)


def test_over_the_wall_the_successor_goes_on_and_the_last_in_the_queue_is_taken_back(
    home: Path, machine: str, capfd: pytest.CaptureFixture[str]
) -> None:
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
    """Find the process id of a rank of the run."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            seen = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        is_rank = words[1:4] == [b"-m", b"components.train", str(run).encode()]
        if is_rank and f"PALS_RANKID={rank}".encode() in seen:
            return int(folder.name)
    pytest.fail(f"no rank {rank} of {run}")


def test_a_killed_rank_is_named_and_a_cancelled_successor_saves_first(
    home: Path, machine: str, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert f"the next job avoids {node}" in _said(run, failed.job)

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


def _said(run: Path, job: str) -> str:
    return (run / "jobs" / f"{job}.OU").read_text()
