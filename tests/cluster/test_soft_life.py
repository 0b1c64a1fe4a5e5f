"""Ranks whose numbers are not finite on a real Slurm: marked, relaunched, and finished."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import (
    TWO_RANKS,
    Submit,
    finish,
    home,
    same_as_uninterrupted,
    submit,
    uninterrupted,
)
from tests.life.conftest import entries

__all__ = ["home", "same_as_uninterrupted", "submit", "uninterrupted"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

STEPS = (33, 77)  # a checkpoint is of step 20, 40, 60, and so on
FAULTS = ", ".join(f"{{fault: nan, rank: 1, step: {step}}}" for step in STEPS)


def test_a_node_is_marked_the_next_job_goes_on_without_it_and_ends_with_the_same_losses(
    slurm: LocalSlurm, submit: Submit, same_as_uninterrupted: Callable[[Path], None]
) -> None:
    run = submit(
        *("soft", *TWO_RANKS, "guard.non_finite.action=relaunch"),
        f"guard.inject=[{FAULTS}]",
    )
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
    said = (run / "jobs" / f"{second.job}.log").read_text()
    assert "2 nodes are suspected, too many to avoid" in said
    assert [one["evidence"]["nodes"] for one in entries(run, "relaunch")] == [
        list(first.bad_nodes),
        list(second.bad_nodes),
    ]
    same_as_uninterrupted(run)
