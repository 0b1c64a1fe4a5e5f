"""A node dies under a run on a real Slurm: a spare one takes its place inside the same job."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from components.run.history import read_lines
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import (
    TWO_RANKS,
    Submit,
    finish,
    home,
    losses,
    status,
    submit,
    wait_until,
)

__all__ = ["home", "submit"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

SPARE = ("watchdog.restarts=2", "cluster.spare_nodes=1")


def processes_on(node: str, run: Path) -> list[int]:
    """Find the ranks of a node, and what Slurm started them by, among this host's processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        its = f"SLURMD_NODENAME={node}".encode() in seen
        if its and (b"slurmstepd" in words or str(run).encode() in words):
            found.append(int(folder.name))
    return sorted(found)


def test_when_a_node_dies_the_spare_one_goes_on_inside_the_same_job(
    slurm: LocalSlurm, submit: Submit
) -> None:
    run = submit("spared", *TWO_RANKS, *SPARE)
    wait_until(slurm, run, lambda: len(saved(run)) >= 2, 180)
    (job,) = status(run).jobs
    assert len(job.nodes) == 3
    script, node, spare = job.nodes
    killed = time.time()
    slurm.stop(node, signal.SIGKILL)
    for process in processes_on(node, run):
        os.kill(process, signal.SIGKILL)
    try:
        end = finish(slurm, run, 400)
    finally:
        slurm.start_node(node)
    assert end.state == "finished"
    assert [each.job for each in end.jobs] == [job.job, job.job]  # none waited in the queue
    assert [each.attempt for each in end.jobs] == [0, 1]
    events = read_lines(run / "events.jsonl")
    (restart,) = (event for event in events if event["kind"] == "restart")
    assert restart["evidence"]["restart"] == 1
    assert (run / "preflight" / "nodes").read_text().split() == [script, spare]
    tell_times(run, killed)
    whole = submit("unspared", *TWO_RANKS)
    assert finish(slurm, whole, 400).state == "finished"
    assert losses(run) == losses(whole)


def saved(run: Path) -> list[dict[str, object]]:
    events = read_lines(run / "events.jsonl")
    return [event for event in events if event["kind"] == "checkpoint"]


def tell_times(run: Path, killed: float) -> None:
    """Print what came when after a kill, up to the first step that was taken again."""
    events = [one for one in read_lines(run / "events.jsonl") if one["time"] > killed]
    kinds = ("job_end", "restart", "preflight", "resume")
    for event in (event for event in events if event["kind"] in kinds):
        sys.stdout.write(
            f"{event['time'] - killed:6.1f} s: {event['kind']}: {event['cause']}\n"
        )
    (resume,) = (event["time"] for event in events if event["kind"] == "resume")
    lines = read_lines(run / "metrics.jsonl")
    step = min(one["time"] for one in lines if one["kind"] == "step" and one["time"] > resume)
    sys.stdout.write(f"{step - killed:6.1f} s: the next step\n")
