"""A rank's numbers are not finite, under ``relaunch``: nothing is saved, its node is told.

What goes on from the last checkpoint ends with the bits of a run that nothing befell.
"""

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from components.fault_tolerance.failures import read_errors
from components.fault_tolerance.soft_failure import soft_failure
from tests.life.conftest import TINY, Program, act, entries

CUT = ("budget.total_tokens", "checkpoint.every_tokens", "evaluation.every_tokens")
WORDS = (
    *(word for word in TINY if not word.startswith(CUT)),
    "budget.total_tokens=4_096",
    "checkpoint.every_tokens=2_048",
    "checkpoint.keep=2",
    "evaluation.every_tokens=4_096",
    "guard.non_finite.action=relaunch",
)
TWO = (*WORDS, "cluster.ranks=2")
BAD_STEP, SAVED = 6, "tokens-000000000002048"
FAULT = f"guard.inject=[{{fault: nan, rank: 1, step: {BAD_STEP}}}]"
NODE = os.uname().nodename
TOLD = f"step {BAD_STEP}, after 2,560 tokens: loss and gradient norm not finite; "


def checkpoints(run: Path) -> list[str]:
    return sorted(file.name for file in (run / "checkpoints").glob("tokens-*"))


def last_bytes(run: Path) -> dict[str, bytes]:
    """Read weights and optimizer of the newest checkpoint."""
    newest = run / "checkpoints" / checkpoints(run)[-1]
    return {
        name: tensor.numpy().tobytes()
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    assert act(home, *TWO, f"run={home / 'undisturbed'}") == 0
    return home / "undisturbed"


@pytest.mark.long
def test_the_run_ends_without_saving_names_the_node_and_goes_on_with_the_same_bits(
    home: Path, undisturbed: Path, program: Program
) -> None:
    run = home / "struck"
    err = program(*TWO, FAULT, f"run={run}", status=1).stderr
    assert f"{TOLD}the forward pass was not finite on {NODE} (rank 1)" in err
    assert f"resume={run} resumes from the last checkpoint" in err
    assert "Traceback" not in err
    assert checkpoints(run) == [SAVED]
    assert not (run / "results.json").exists()
    found = [soft_failure(error.message) for error in read_errors(run / "ranks")]
    assert found[0] is not None
    assert (found[0].step, found[0].ranks) == (BAD_STEP, (1,))
    (event,) = entries(run, "relaunch")
    assert event["step"] == BAD_STEP - 1
    assert event["evidence"]["nodes"] == [NODE]
    assert [one["rank"] for one in event["evidence"]["found_by"]] == [1]
    program(f"resume={run}")
    assert [one["step"] for one in entries(run, "resume")] == [4]
    assert last_bytes(run) == last_bytes(undisturbed)


@pytest.mark.long
def test_the_agent_of_a_run_with_restarts_relaunches_it(
    home: Path, undisturbed: Path, program: Program
) -> None:
    run = home / "relaunched"
    program(*TWO, FAULT, "watchdog.restarts=1", f"run={run}")
    (restart,) = entries(run, "restart")
    assert TOLD in restart["cause"]
    assert [one["step"] for one in entries(run, "resume")] == [4]
    assert last_bytes(run) == last_bytes(undisturbed)


def test_a_single_rank_ends_with_the_same_words(home: Path, program: Program) -> None:
    run, fault = home / "alone", FAULT.replace("rank: 1", "rank: 0")
    err = program(*WORDS, fault, f"run={run}", status=1).stderr
    assert f"{TOLD}the forward pass was not finite on {NODE} (rank 0)" in err
    assert "if the step is not finite again, add guard.non_finite.action=skip" in err
    assert "Traceback" not in err
    assert checkpoints(run) == [SAVED]


@pytest.mark.long
@pytest.mark.parametrize("zero", [0, 2])
def test_deepspeed_relaunches_without_having_taken_the_step(
    home: Path, program: Program, zero: int
) -> None:
    engine = ("parallelism.engine=deepspeed", f"parallelism.zero={zero}")
    expected, run = home / f"expected-{zero}", home / f"deepspeed-{zero}"
    program(*TWO, *engine, f"run={expected}")
    err = program(*TWO, *engine, FAULT, f"run={run}", status=1).stderr
    assert f"the forward pass was not finite on {NODE} (rank 1)" in err
    assert checkpoints(run) == [SAVED]
    program(f"resume={run}")
    losses = [one["loss"] for one in entries(run, "step")][-4:]
    assert losses == [one["loss"] for one in entries(expected, "step")][-4:]
