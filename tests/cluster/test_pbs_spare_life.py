"""A rank is lost under PBS, run by a stand-in: the same job goes on with a spare node."""

import os
import signal
import time
from pathlib import Path

import pytest

from components.run.history import read_lines
from tests.cluster import openpbs
from tests.cluster.test_pbs_chain import (
    HERE,
    SMALL,
    TOLERANCE,
    home,
    machine,
    rank_of,
    status,
    wait_until,
)
from tests.cluster.test_spare_life import tell_times
from tests.life.conftest import act, entries

__all__ = ["home", "machine"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

STEPS = 60
BUDGET = (
    *(f"budget.total_tokens={512 * STEPS}", "checkpoint.every_tokens=5_120"),
    *(f"evaluation.every_tokens={512 * STEPS}", "checkpoint.keep=99"),
)
JOB = ("cluster.hours=0.5", "cluster.jobs=3", "cluster.site.spare_seconds=60")


def test_a_killed_rank_s_node_is_left_out_and_the_same_job_goes_on(
    home: Path, machine: str
) -> None:
    run = home / "spared"
    words = (*SMALL, *HERE, machine, *BUDGET, *JOB, "cluster.spare_nodes=1")
    assert act(home, *words, f"run={run}") == 0
    wait_until(run, lambda: len(entries(run, "checkpoint")) >= 2, 200)
    killed = time.time()
    os.kill(rank_of(run, 1), signal.SIGKILL)
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 300)

    end = status(run)
    first, bad, spare, _ = openpbs.NODES
    job = openpbs.job_id(1)
    assert [(one.job, one.attempt, one.ended) for one in end.jobs] == [
        (job, 0, "failed"),
        (job, 1, "finished"),
    ]
    assert end.jobs[0].why == f"rank 1 on {bad}: died from signal 9"
    assert end.jobs[0].bad_nodes == (bad,)
    assert end.jobs[1].nodes == (first, spare)
    launched = (openpbs.folder() / "ranks").read_text().splitlines()
    ranks = [line for line in launched if line.startswith("components.train ")]
    assert ranks == [f"components.train {first} {one}" for one in (bad, spare)]
    second = openpbs.read(openpbs.job_id(2))
    assert "session" not in second  # it waited for the whole time, and was taken back
    assert not (openpbs.folder() / f"{openpbs.job_id(3)}.json").exists()
    (restart,) = (one for one in read_lines(run / "events.jsonl") if one["kind"] == "restart")
    assert restart["evidence"] == {
        "restart": 1,
        "job": job,
        "nodes": [first, spare],
        "left_out": [bad],
    }
    tell_times(run, killed)
    assert_as_undisturbed(home, run)


def test_a_node_whose_numbers_are_bad_is_left_out_and_the_same_job_goes_on(
    home: Path, machine: str
) -> None:
    run = home / "soft"
    fault = "guard.inject=[{fault: nan, rank: 1, step: 23}]"
    words = (*SMALL, *HERE, machine, *BUDGET, *JOB, "cluster.spare_nodes=1", fault)
    assert act(home, *words, "guard.non_finite.action=relaunch", f"run={run}") == 0
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 400)
    first, bad, spare, _ = openpbs.NODES
    before, after = status(run).jobs
    assert before.job == after.job
    assert (before.bad_nodes, before.bad_step, before.tokens_at_end) == ((bad,), 23, 10_240)
    assert "step 23, after 11,264 tokens: loss and gradient norm not finite" in before.why
    assert after.nodes == (first, spare)
    assert_as_undisturbed(home, run)


def assert_as_undisturbed(home: Path, run: Path) -> None:
    """Every step was taken, with the samples and the loss of a run that nothing happened to."""
    alone = home / "alone"
    if not alone.exists():
        assert act(home, *SMALL, *BUDGET, f"run={alone}") == 0
    expected, found = entries(alone, "step"), entries(run, "step")
    again = {entry["step"]: entry for entry in found}
    assert sorted(again) == list(range(1, STEPS + 1))
    for one in expected:
        assert one["samples_digest"] == again[one["step"]]["samples_digest"]
        assert again[one["step"]]["loss"] == pytest.approx(one["loss"], rel=TOLERANCE)
