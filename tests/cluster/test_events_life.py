"""A rank is killed and a wall comes near on a real Slurm; the event log has all of it."""

from pathlib import Path

import pytest

from command.main import main
from components.report.outcome import load_run
from components.run.history import read_lines
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import (
    TWO_RANKS,
    Compare,
    Submit,
    begun,
    finish,
    same_as_uninterrupted,
    status,
    submit,
    uninterrupted,
    wait_until,
)

__all__ = ["same_as_uninterrupted", "submit", "uninterrupted"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

KILLED_STEP, SAVED_STEPS, STEPS = 50, 20, 400
WORDS = (
    *(word for word in TWO_RANKS if not word.startswith("budget.total")),
    *(f"budget.total_tokens={512 * STEPS}", "cluster.spare_nodes=1", "checkpoint.keep=99"),
    f"guard.inject=[{{fault: kill, rank: 1, step: {KILLED_STEP}}}]",
)


def test_run_that_loses_a_rank_and_then_its_job_tells_why(
    slurm: LocalSlurm, submit: Submit, same_as_uninterrupted: Compare, tmp_path: Path
) -> None:
    run = submit("story", *WORDS)
    wait_until(slurm, run, begun(run, "resume"), 240)  # inside the job, after the kill
    failed, job = status(run).jobs
    assert (failed.job, failed.attempt, job.attempt) == (job.job, 0, 1)
    first, bad, spare = failed.nodes
    assert job.nodes == (first, spare)
    # Slurm's warning before the time limit: the run saves, and the next job continues. For a
    # task of an array, scancel 22.05 sends the signal but ends with status 1.
    slurm.call("scancel", "--batch", "--signal=USR1", job.job, check=False)
    end = finish(slurm, run, 400)
    assert end.state == "finished"
    assert [one.ended for one in end.jobs] == ["failed", "stopped", "finished"]
    same_as_uninterrupted(run)

    events = read_lines(run / "events.jsonl")
    told = [(one["kind"], one["step"]) for one in events if one["kind"] != "checkpoint"]
    saved = KILLED_STEP - 1 - (KILLED_STEP - 1) % SAVED_STEPS
    by_kind = {kind: [one for one in events if one["kind"] == kind] for kind, _ in told}
    (stop,) = by_kind["stop"]
    assert told == [
        ("preflight", 0),
        ("start", 0),
        ("rehearsal", KILLED_STEP - 1),
        *[(kind, saved) for kind in ("job_end", "restart", "preflight", "resume")],
        *[(kind, stop["step"]) for kind in ("stop", "job_end", "preflight", "resume")],
        ("end", STEPS),
        ("job_end", STEPS),
    ]
    assert [one["evidence"]["nodes"] for one in by_kind["preflight"]] == [3, 2, 3]
    places = [one["evidence"] for one in (*by_kind["start"], *by_kind["resume"])]
    here = {"ranks": 2, "nodes": [first, bad], "job": job.job}
    # No other node is up, so the next job uses the excluded node again.
    assert places == [here, here | {"nodes": [first, spare]}, here | {"job": end.jobs[2].job}]
    (restart,) = by_kind["restart"]
    assert restart["cause"] == f"rank 1 on {bad}: Killed"
    again = {"restart": 1, "job": job.job, "nodes": [first, spare], "left_out": [bad]}
    assert restart["evidence"] == again
    assert [one["cause"] for one in by_kind["job_end"]] == [
        f"failed: rank 1 on {bad}: Killed",
        "stopped",
        "finished",
    ]
    steps = [one["step"] for one in events if one["kind"] == "checkpoint"]
    assert {*range(SAVED_STEPS, STEPS + 1, SAVED_STEPS), stop["step"]} == set(steps)

    goodput = load_run(run).history.goodput
    assert goodput.lost_seconds["steps computed again"] > 0
    page = tmp_path / "report.html"
    assert main(["action=report", f"run={run}", f"file={page}"]) == 0
    text = page.read_text()
    for event in (restart, by_kind["resume"][-1]):
        assert event["cause"] in text
