"""Runs on a real Slurm: over the wall, a requeue, killed ranks, lost nodes, bad numbers."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.chain import FATES
from cluster.records import Jobs
from cluster.slurm import Slurm
from cluster.status import RunStatus, status_of
from command.main import main
from components.run.folder import RunFolder
from components.run.history import read_lines
from tests.cluster.pbs_server import LocalPbs
from tests.cluster.programs import Patch
from tests.cluster.slurm import LocalSlurm
from tests.life.conftest import TINY, entries

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

OWN = ("budget.total_tokens", "checkpoint.", "evaluation.", "parallelism.")
SMALL = tuple(word for word in TINY if not word.startswith(OWN))
# JUWELS Booster, but for what this host does not have: GPUs, modules, InfiniBand.
HERE = (
    *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
    *("cluster.site.modules=[]", "cluster.site.environment={}", "cluster.site.host_suffix=''"),
    *("cluster.site.binding.cores_per_rank=1", "parallelism.microbatch_sequences=1"),
    *("site.account=kitchen", "cluster.site.spare_seconds=40"),
    "cluster.preflight.product_fraction=0.01",  # the nodes share this host's cores
)
Submit = Callable[..., Path]
Compare = Callable[[Path], None]


@pytest.fixture
def submit(slurm: LocalSlurm, home: Path, monkeypatch: Patch) -> Submit:
    """Submit a run by the command and return its folder."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def act(name: str, *words: str) -> Path:
        own = {word.partition("=")[0] for word in words}
        here = [word for word in HERE if word.partition("=")[0] not in own]
        assert main([*SMALL, *here, *words, f"run={home / name}"]) == 0
        return home / name

    return act


def status(run: Path) -> RunStatus:
    return status_of(run, Slurm())


def wait_until(
    machine: LocalSlurm | LocalPbs, run: Path, holds: Callable[[], bool], seconds: float
) -> None:
    try:
        machine.wait_for(holds, seconds)
    except AssertionError:
        attempts = Jobs(RunFolder(run)).load_chain().attempts
        pytest.fail(f"{attempts}\n{ends_of_logs(run)}")


def ends_of_logs(run: Path) -> str:
    files = (file for place in ("jobs", "ranks") for file in sorted((run / place).glob("*")))
    logs = [file for file in files if file.suffix in {".log", ".OU"}]
    return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)


def finish(slurm: LocalSlurm, run: Path, seconds: float = 300) -> RunStatus:
    wait_until(slurm, run, lambda: status(run).state in {"finished", "failed", "lost"}, seconds)
    wait_until(slurm, run, lambda: not status(run).queued, 60)
    return status(run)


def losses(run: Path) -> dict[int, tuple[str, float]]:
    """Return digest of the samples and loss of each step, as last computed."""
    steps = entries(run, "step")
    return {entry["step"]: (entry["samples_digest"], entry["loss"]) for entry in steps}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[tuple[str, ...], Path]:
    """Uninterrupted runs, by the words of their command."""
    return {}


@pytest.fixture
def same_as_uninterrupted(
    home: Path, submit: Submit, uninterrupted: dict[tuple[str, ...], Path]
) -> Compare:
    """Compare a run, bit by bit, with the same ranks under torchrun on this machine."""

    def compare(run: Path) -> None:
        ranks = json.loads((run / "derived.json").read_text())["ranks"]
        said = [
            word for word in Jobs(RunFolder(run)).load_chain().words if word.startswith(OWN)
        ]
        own = (*said, f"cluster.ranks={ranks}")
        if own not in uninterrupted:
            whole = home / f"whole-{len(uninterrupted)}"
            assert main([*SMALL, *own, f"run={whole}"]) == 0
            uninterrupted[own] = whole
        assert losses(run) == losses(uninterrupted[own])

    return compare


@pytest.mark.long
def test_chain_continues_over_time_limits(slurm, submit, capsys):
    words = (
        *("cluster.nodes=2", "parallelism.data=8", "budget.total_tokens=614_400"),
        *("checkpoint.every_tokens=204_800", "evaluation.every_tokens=307_200"),
    )
    short = ("cluster.hours=0.0333", "cluster.jobs=20")
    run = submit("walled", *words, *short)
    assert "submitted " in capsys.readouterr().out
    wait_until(slurm, run, lambda: status(run).state == "running", 60)
    assert main([*SMALL, *HERE, *words, *short, f"run={run}"]) == 2  # twice
    assert f"run: {run} is submitted: " in capsys.readouterr().err

    end = finish(slurm, run, 1_000)
    assert end.state == "finished"
    first, *others = end.jobs
    assert (first.ended, others[-1].ended) == ("stopped", "finished")
    assert len(end.jobs) < 20  # those left were taken back
    for one, other in zip(end.jobs, end.jobs[1:], strict=False):
        assert one.tokens_at_end == other.tokens_at_begin > 0
    steps = [entry["step"] for entry in entries(run, "step")]
    assert steps == list(range(1, 1_201))  # no sample is lost, none is read twice
    whole = submit("whole", *words, "cluster.hours=0.5", "cluster.jobs=1")
    assert finish(slurm, whole, 400).state == "finished"
    assert losses(run) == losses(whole)  # to the last bit


def begun(run: Path, kind: str = "step") -> Callable[[], bool]:
    return lambda: bool(entries(run, kind))


TWO_RANKS = (
    *("cluster.nodes=2", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
    *("cluster.hours=0.5", "cluster.jobs=3", "evaluation.every_tokens=51_200"),
    *("budget.total_tokens=102_400", "checkpoint.every_tokens=10_240"),
)


def test_requeued_job_continues_from_its_checkpoint(slurm, submit, same_as_uninterrupted):
    words = (word for word in TWO_RANKS if not word.startswith("cluster.jobs"))
    run = submit("requeued", *words, "cluster.jobs=1")
    wait_until(slurm, run, begun(run, "checkpoint"), 120)
    slurm.call("scontrol", "requeue", status(run).jobs[-1].job)
    wait_until(slurm, run, lambda: status(run).why.startswith("BeginTime"), 60)
    end = finish(slurm, run)
    assert end.state == "finished"
    assert [(job.attempt, job.ended) for job in end.jobs] == [(0, "lost"), (1, "finished")]
    assert end.jobs[0].why == FATES["put back"]
    assert end.jobs[1].tokens_at_begin >= 10_240
    same_as_uninterrupted(run)


def rank_with(run: Path, variable: str) -> int:
    """Find the process id of the run's rank with a variable, among all of this host."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            seen = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        is_rank = words[1:4] == [b"-m", b"components.train", str(run).encode()]
        if is_rank and variable.encode() in seen:
            return int(folder.name)
    pytest.fail(f"no rank of {run} with {variable}")


def rank_on(node: str, run: Path) -> int:
    return rank_with(run, f"SLURMD_NODENAME={node}")


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mesh", "deepspeed"])
def test_run_killed_in_a_save_continues_from_the_last_whole_checkpoint(
    engine: str, slurm: LocalSlurm, submit: Submit, same_as_uninterrupted: Compare
) -> None:
    """It saves after each step: while one checkpoint is written, an older one is removed."""
    often = ("checkpoint.every_tokens=512", "checkpoint.keep=1")
    words = [word for word in TWO_RANKS if not word.startswith("checkpoint.")]
    run = submit(f"torn-{engine}", *words, *often, f"parallelism.engine={engine}")
    folder = run / "checkpoints"
    wait_until(slurm, run, lambda: len(entries(run, "checkpoint")) > 2, 120)
    ranks = [rank_on(node, run) for node in status(run).jobs[-1].nodes]
    slurm.wait_for(lambda: any(folder.glob(".tokens-*")), 30)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    wait_until(slurm, run, begun(run, "resume"), 200)
    (resumed,) = entries(run, "resume")
    end = finish(slurm, run)
    assert [job.ended for job in end.jobs] == ["failed", "finished"]
    assert 0 < resumed["tokens"] == end.jobs[0].tokens_at_end
    assert [one.name for one in folder.iterdir()] == [f"tokens-{102_400:015d}"]
    same_as_uninterrupted(run)


def test_cancelled_run_saves_and_resumes(slurm, submit, capsys):
    """Its path has what Slurm would expand in the names of output files."""
    words = [word for word in TWO_RANKS if not word.startswith("cluster.jobs")]
    run = submit("50%j%%", *words, "cluster.jobs=1")
    wait_until(slurm, run, begun(run, "checkpoint"), 120)
    capsys.readouterr()
    assert main(["action=cancel", f"run={run}"]) == 0
    assert "saves after the current step, then ends" in capsys.readouterr().out
    wait_until(slurm, run, lambda: not status(run).queued, 120)
    stopped = status(run)
    assert (stopped.state, stopped.tokens) == ("stopped", entries(run, "step")[-1]["tokens"])
    new = ["cluster.hours=0.4", "guard.non_finite.most=7", "cluster.jobs=2"]
    new += ["cluster.site.environment.ADDED={value: here, reason: a trial}"]
    assert main([f"resume={run}", "site.account=kitchen", *new]) == 0
    assert "guard.non_finite.most: " in capsys.readouterr().err
    wait_until(slurm, run, begun(run, "changed_setting"), 120)
    rank = rank_on(status(run).jobs[-1].nodes[0], run)
    assert b"ADDED=here" in Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    end = finish(slurm, run)
    assert end.state == "finished"
    (changed,) = entries(run, "changed_setting")
    assert changed["evidence"]["cluster.hours"] == [0.5, 0.4]
    assert {log.name for log in (run / "jobs").glob("*.log")} == {
        f"{job.job}.log" for job in end.jobs
    }
    logs = [log.stem for log in (run / "ranks").glob("*.log") if "preflight" not in log.name]
    # The nodes of this Slurm share a host, which names their logs.
    assert {log.rpartition("-")[0] for log in logs} == {job.job for job in end.jobs}
    steps = [entry["step"] for entry in entries(run, "step")]
    assert steps == list(range(1, 201))


def end_node(slurm: LocalSlurm, node: str, run: Path) -> None:
    """Let a node die: its daemon, and all that runs on it, without a word."""
    slurm.stop(node, signal.SIGKILL)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        its = f"SLURMD_NODENAME={node}".encode() in seen
        if its and (b"slurmstepd" in words or str(run).encode() in words):
            os.kill(int(folder.name), signal.SIGKILL)


def test_job_of_a_dead_node_is_requeued_and_continues_without_it(
    slurm: LocalSlurm, submit: Submit, same_as_uninterrupted: Compare
) -> None:
    run = submit("lost", *TWO_RANKS)
    wait_until(slurm, run, begun(run, "checkpoint"), 120)
    node = status(run).jobs[-1].nodes[1]  # the script runs on the first
    end_node(slurm, node, run)
    try:
        end = finish(slurm, run, 400)
    finally:
        slurm.start_node(node)
    assert end.state == "finished"
    assert len(end.jobs) >= 2
    assert node not in end.jobs[-1].nodes
    same_as_uninterrupted(run)
    slurm.wait_for(lambda: slurm.idle() == set(slurm.nodes), 60)


@pytest.mark.long
def test_same_job_continues_on_a_spare_node(slurm, submit, same_as_uninterrupted):
    run = submit("spared", *TWO_RANKS, "watchdog.restarts=2", "cluster.spare_nodes=1")
    wait_until(slurm, run, lambda: len(entries(run, "checkpoint")) >= 2, 180)
    (job,) = status(run).jobs
    script, node, spare = job.nodes
    killed = time.time()
    end_node(slurm, node, run)
    try:
        end = finish(slurm, run, 400)
    finally:
        slurm.start_node(node)
    assert end.state == "finished"
    # None waited in the queue.
    assert [(each.job, each.attempt) for each in end.jobs] == [(job.job, 0), (job.job, 1)]
    (restart,) = entries(run, "restart")
    assert restart["evidence"]["restart"] == 1
    assert (run / "preflight" / "nodes").read_text().split() == [script, spare]
    tell_times(run, killed)
    same_as_uninterrupted(run)
    slurm.wait_for(lambda: slurm.idle() == set(slurm.nodes), 60)


def tell_times(run: Path, killed: float) -> None:
    """Print what came when after a kill, up to the first step that was taken again."""
    events = [one for one in read_lines(run / "events.jsonl") if one["time"] > killed]
    kinds = ("job_end", "restart", "preflight", "resume")
    for event in (event for event in events if event["kind"] in kinds):
        text = f"{event['kind']}: {event['cause']}"
        sys.stdout.write(f"{event['time'] - killed:6.1f} s: {text}\n")
    (resume,) = (event["time"] for event in events if event["kind"] == "resume")
    step = min(one["time"] for one in entries(run, "step") if one["time"] > resume)
    sys.stdout.write(f"{step - killed:6.1f} s: the next step\n")


BAD_STEPS = (33, 77)  # a checkpoint is of step 20, 40, 60, and so on
FAULTS = ", ".join(f"{{fault: nan, rank: 1, step: {step}}}" for step in BAD_STEPS)


@pytest.mark.long
def test_node_with_numbers_not_finite_is_left_out_of_the_next_job(
    slurm: LocalSlurm, submit: Submit, same_as_uninterrupted: Compare
) -> None:
    fault = ("guard.non_finite.action=relaunch", f"guard.inject=[{FAULTS}]")
    run = submit("soft", *TWO_RANKS, *fault)
    end = finish(slurm, run, 600)
    assert end.state == "finished"
    first, second, third = end.jobs
    assert [one.ended for one in end.jobs] == ["failed", "failed", "finished"]
    assert "step 33, after 16,384 tokens: loss and gradient norm not finite; the" in first.why
    assert (first.bad_nodes, first.bad_step) == (first.nodes[1:], 33)
    assert not {*first.bad_nodes} & {*second.nodes, *third.nodes}
    assert (second.bad_nodes, second.bad_step) == (second.nodes[1:], 77)
    assert [one.tokens_at_end for one in end.jobs] == [10_240, 30_720, 102_400]
    # Of two nodes not more than one may be to blame.
    text = (run / "jobs" / f"{second.job}.log").read_text()
    assert "2 nodes are suspected, too many to avoid" in text
    relaunches = [one["evidence"]["nodes"] for one in entries(run, "relaunch")]
    assert relaunches == [list(first.bad_nodes), list(second.bad_nodes)]
    same_as_uninterrupted(run)
