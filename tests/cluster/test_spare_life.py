"""A node dies under a run on a real Slurm: a spare one takes its place inside the same job."""

import os
import signal
from pathlib import Path

import pytest

from components.run.history import read_lines
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import (
    TWO_RANKS,
    Submit,
    begun,
    finish,
    home,
    losses,
    status,
    submit,
    wait_until,
)

__all__ = ["home", "submit"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1_500)]

SPARE = ("watchdog.restarts=2", "cluster.spare_nodes=1")


def processes_on(node: str, run: Path) -> list[int]:
    """Find the agent of a node and its ranks among all processes of this host."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        its = f"SLURMD_NODENAME={node}".encode() in seen
        if its and (b"slurmstepd" in words or str(run).encode() in words or b"fork" in words):
            found.append(int(folder.name))
    return sorted(found)


def test_when_a_node_dies_the_spare_one_goes_on_inside_the_same_job(
    slurm: LocalSlurm, submit: Submit
) -> None:
    run = submit("spared", *TWO_RANKS, *SPARE)
    wait_until(slurm, run, lambda: len(saved(run)) >= 2, 180)
    (job,) = status(run).jobs
    assert len(job.nodes) == 3
    # The script runs on the first node, where the others meet; of these one waits.
    (node,) = (node for node in job.nodes[1:] if has_ranks(node, run))
    slurm.stop(node, signal.SIGKILL)
    for process in processes_on(node, run):
        os.kill(process, signal.SIGKILL)
    try:
        end = finish(slurm, run, 400)
    finally:
        slurm.start_node(node)
    assert end.state == "finished"
    assert [each.job for each in end.jobs] == [job.job]  # no other waited in the queue
    events = read_lines(run / "journal.jsonl")
    assert [event["kind"] for event in events if event["kind"] in {"restart", "resume"}]
    whole = submit("unspared", *TWO_RANKS)
    assert finish(slurm, whole, 400).state == "finished"
    assert losses(run) == losses(whole)
    assert begun(run)()


def has_ranks(node: str, run: Path) -> bool:
    """Whether a node's agent has started ranks: it forks them."""
    commands = (Path(f"/proc/{one}/cmdline").read_bytes() for one in processes_on(node, run))
    return any(b"forkserver" in command for command in commands)


def saved(run: Path) -> list[dict[str, object]]:
    events = read_lines(run / "journal.jsonl")
    return [event for event in events if event["kind"] == "checkpoint"]
