"""Two stages of tensor ranks: the losses of one process, also after a kill."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.life.conftest import Program, act, command, entries, environment, tiny

pytestmark = pytest.mark.long

# Ranks add the same fp32 numbers in another order; losses are near 6.
LOSS_TOLERANCE = 2e-5
# An odd length: what tensor ranks need not slice, they need not shorten either.
SHORT = tiny(
    "budget.sequence_length=63",
    "budget.global_batch_tokens=504",
    "budget.total_tokens=6_048",
    "checkpoint.every_tokens=3_024",
    "evaluation.every_tokens=3_024",
)
GRID = (
    *(*SHORT, "cluster.ranks=4", "parallelism.pipeline=2", "parallelism.tensor=2"),
    "parallelism.sequence_parallel=false",
)
STEPS, SAVED_STEPS = 12, 6


@pytest.fixture(scope="module")
def grid(home: Path) -> Path:
    """The uninterrupted run."""
    assert act(home, *GRID, f"run={home / 'grid'}") == 0
    return home / "grid"


def test_stages_of_tensor_ranks_have_the_losses_of_one_process(grid: Path, home: Path) -> None:
    alone = home / "alone"
    assert act(home, *SHORT, f"run={alone}") == 0
    for kind in ("step", "held_out"):
        for one, other in zip(entries(grid, kind), entries(alone, kind), strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=LOSS_TOLERANCE), kind
            assert one.get("samples_digest") == other.get("samples_digest")


def test_a_killed_layout_resumes_by_its_printed_command_with_the_same_losses(
    grid: Path, home: Path, program: Program
) -> None:
    run = home / "killed"
    process = subprocess.Popen(
        command(*GRID, f"run={run}"),
        cwd=home,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not entries(run, "checkpoint"):
        assert process.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.killpg(int(children[0]), signal.SIGKILL)  # the agent leads the group of its ranks
    process.kill()
    _, err = process.communicate(timeout=600)
    printed = re.search(r"run\.py (resume=\S+)\)", err)
    assert printed is not None, err[-4000:]
    assert printed.group(1) == f"resume={run}"
    assert not (run / "results.json").exists()

    program(printed.group(1))
    (resumed,) = entries(run, "resume")
    assert resumed["step"] >= SAVED_STEPS
    steps = entries(run, "step")
    assert {entry["step"] for entry in steps} == set(range(1, STEPS + 1))
    computed = [entry for entry in steps[-STEPS:] if entry["step"] > resumed["step"]]
    expected = {entry["step"]: entry["loss"] for entry in entries(grid, "step")}
    assert computed[-1]["step"] == STEPS
    assert [entry["loss"] for entry in computed] == [expected[e["step"]] for e in computed]
    last, whole = entries(run, "held_out")[-1], entries(grid, "held_out")[-1]
    assert (last["step"], last["loss"]) == (whole["step"], whole["loss"])
