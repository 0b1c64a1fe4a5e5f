"""A rank is killed and a node is drained on a real Slurm; the journal tells the whole story."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from command.main import main
from components.report.outcome import load_run
from components.run.history import read_lines
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import (
    TWO_RANKS,
    Submit,
    begun,
    finish,
    home,
    same_as_uninterrupted,
    status,
    submit,
    uninterrupted,
    wait_until,
)

__all__ = ["home", "same_as_uninterrupted", "submit", "uninterrupted"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1_500)]

KILLED_STEP, SAVED_STEPS, STEPS = 50, 20, 400
WORDS = (
    *(word for word in TWO_RANKS if not word.startswith("budget.total")),
    *(f"budget.total_tokens={512 * STEPS}", "watchdog.restarts=2", "checkpoint.keep=99"),
    f"guard.inject=[{{fault: kill, rank: 1, step: {KILLED_STEP}}}]",
)


def chapters(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a healthy run tells again and again."""
    return [event for event in events if event["kind"] != "checkpoint"]


def test_a_run_that_loses_a_rank_and_then_a_node_ends_at_its_budget_and_tells_why(
    slurm: LocalSlurm,
    submit: Submit,
    same_as_uninterrupted: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    run = submit("story", *WORDS)
    wait_until(slurm, run, begun(run, "resume"), 240)  # inside the job, after the kill
    (job,) = status(run).jobs
    first, drained = job.nodes
    slurm.call("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    try:
        # As Slurm does before the wall: the run saves, and the chain's next job goes on. For a
        # task of an array scancel 22.05 signals, and yet ends with 1: what came of it is below.
        slurm.call("scancel", "--batch", "--signal=USR1", job.job, check=False)
        end = finish(slurm, run, 400)
    finally:
        slurm.call("scontrol", "update", f"NodeName={drained}", "State=RESUME")
    assert end.state == "finished"
    assert [one.ended for one in end.jobs] == ["stopped", "finished"]
    same_as_uninterrupted(run)

    (other,) = set(slurm.nodes) - set(job.nodes)
    events = read_lines(run / "journal.jsonl")
    looked, start, fault, restart, resume, stop, stopped, *rest = chapters(events)
    looked_again, again, over, finished = rest
    for one, step in ((looked, 0), (looked_again, stop["step"])):
        assert (one["kind"], one["step"]) == ("preflight", step)
        assert one["evidence"] == {"nodes": 2, "needed": 2, "excluded": {}}
    places = [one["evidence"] for one in (start, resume, again)]
    here = {"ranks": 2, "nodes": [first, drained], "job": job.job}
    there = {"ranks": 2, "nodes": sorted([first, other]), "job": end.jobs[1].job}
    assert places == [here, here, there]
    told = [(one["kind"], one["step"]) for one in (start, fault, restart, resume)]
    saved = KILLED_STEP - 1 - (KILLED_STEP - 1) % SAVED_STEPS
    assert told == [
        ("start", 0),
        ("rehearsal", KILLED_STEP - 1),
        ("restart", saved),
        ("resume", saved),
    ]
    assert restart["evidence"] == {"restart": 1, "without_a_word": [1]}
    assert restart["cause"].startswith("rank 1 left no word; rank 0: ")
    assert (stop["kind"], stop["step"]) == ("stop", again["step"])
    assert (stopped["kind"], stopped["cause"]) == ("job_end", "stopped")
    assert stopped["evidence"] == {"job": job.job, "attempt": 0, "nodes": [first, drained]}
    assert (again["kind"], again["tokens"]) == ("resume", stopped["tokens"])
    assert (over["kind"], over["step"], over["tokens"]) == ("end", STEPS, 512 * STEPS)
    assert (finished["kind"], finished["cause"]) == ("job_end", "finished")
    steps = [one["step"] for one in events if one["kind"] == "checkpoint"]
    assert {*range(SAVED_STEPS, STEPS + 1, SAVED_STEPS), stop["step"]} == set(steps)

    goodput = load_run(run).journal.goodput
    assert goodput.lost_seconds["steps computed again"] > 0
    page = tmp_path / "report.html"
    assert main(["action=report", f"run={run}", f"file={page}"]) == 0
    text = page.read_text()
    for event in (restart, again):
        assert event["cause"] in text
    assert f"nodes {first}, {other}" in text or f"nodes {other}, {first}" in text
