"""A rank's numbers are not finite, under ``relaunch``: nothing is saved, its node is told.

What goes on from the last checkpoint ends with the bits of a run that nothing befell.
"""

import os
from pathlib import Path

import pytest

from components.fault_tolerance.failures import read_errors
from components.fault_tolerance.soft_failure import soft_failure
from tests.life.conftest import check_same_bits, column, entries, tiny
from tests.life.together import begin, train_together

WORDS = tiny(
    "budget.total_tokens=4_096",
    "checkpoint.every_tokens=2_048",
    "evaluation.every_tokens=4_096",
    "guard.non_finite.action=relaunch",
)
TWO = (*WORDS, "cluster.ranks=2")
DEEPSPEED = (*TWO, "parallelism.engine=deepspeed", "parallelism.zero=2")
BAD_STEP, SAVED = 6, "tokens-000000000002048"
FAULT = f"guard.inject=[{{fault: nan, rank: 1, step: {BAD_STEP}}}]"
NODE = os.uname().nodename
TOLD = f"step {BAD_STEP}, after 2,560 tokens: loss and gradient norm not finite; "


def checkpoints(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoints").glob("tokens-*"))


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> dict[str, Path]:
    """A run of each engine that nothing befalls."""
    runs = {
        "mesh": begin(home, "mesh", *TWO),
        "deepspeed": begin(home, "deepspeed", *DEEPSPEED),
    }
    train_together([*runs.values()], 2)
    return runs


@pytest.mark.long
def test_the_agent_relaunches_a_run_with_restarts(home, undisturbed, program):
    run = home / "relaunched"
    program(*TWO, FAULT, "watchdog.restarts=1", f"run={run}")
    (restart,) = entries(run, "restart")
    assert TOLD in restart["cause"]
    assert column(run, "step", "resume") == [4]
    check_same_bits(run, undisturbed["mesh"])
    (event,) = entries(run, "relaunch")
    assert event["step"] == BAD_STEP - 1
    assert event["evidence"]["nodes"] == [NODE]
    assert [one["rank"] for one in event["evidence"]["found_by"]] == [1]


def test_a_single_rank_with_nan_ends_without_saving_and_resumes(home, program):
    run = home / "alone"
    fault = FAULT.replace("rank: 1", "rank: 0")
    err = program(*WORDS, fault, f"run={run}", status=1).stderr
    assert f"{TOLD}the forward pass was not finite on {NODE} (rank 0)" in err
    assert "if the step is not finite again, add guard.non_finite.action=skip" in err
    assert "Traceback" not in err
    assert checkpoints(run) == [SAVED]
    program(f"resume={run}")
    assert column(run, "step", "resume") == [4]


@pytest.mark.long
def test_deepspeed_with_nan_ends_before_the_update_and_resumes(home, undisturbed, program):
    run = home / "struck"
    err = program(*DEEPSPEED, FAULT, f"run={run}", status=1).stderr
    # DeepSpeed has no norm of a step that it skips.
    assert f"loss not finite; the forward pass was not finite on {NODE} (rank 1)" in err
    assert f"resume={run} resumes from the last checkpoint" in err
    assert "Traceback" not in err
    assert checkpoints(run) == [SAVED]
    assert not (run / "results.json").exists()
    found = [soft_failure(error.message) for error in read_errors(run / "ranks")]
    assert found[0] is not None
    assert (found[0].step, found[0].ranks) == (BAD_STEP, (1,))
    program(f"resume={run}")
    assert column(run, "loss")[-4:] == column(undisturbed["deepspeed"], "loss")[-4:]
