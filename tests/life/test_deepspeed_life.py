"""A run that begins with one engine and goes on with the other."""

import json
from pathlib import Path

import pytest

from tests.life.conftest import Program, column, tiny

pytestmark = pytest.mark.long

WORDS = tiny(
    "budget.total_tokens=6_144",
    "checkpoint.every_tokens=2_048",
    "checkpoint.keep=3",
    "evaluation.every_tokens=6_144",
    "cluster.ranks=2",
)
STEPS = 12


def forget_after(run: Path, step: int) -> None:
    """Let the run be as it was after ``step``."""
    (run / "results.json").unlink()
    for marker in (run / "checkpoints").glob("tokens-*/progress.json"):
        if json.loads(marker.read_text())["progress"]["step"] > step:
            marker.unlink()


def test_each_engine_goes_on_from_the_other_with_the_losses_of_an_uninterrupted_run(
    home: Path, program: Program
) -> None:
    run = home / "run"
    words = ("parallelism.engine=deepspeed", "parallelism.zero=2")
    done = program(*WORDS, *words, f"run={run}")
    assert "eepSpeed" not in done.stdout
    uninterrupted, held_out = column(run, "loss"), column(run, "loss", "held_out")[-1]
    assert len(uninterrupted) == STEPS
    given = json.loads((run / "deepspeed.json").read_text())
    assert given["zero_optimization"]["stage"] == 2
    assert given["train_batch_size"] == 2 * given["train_micro_batch_size_per_gpu"]
    for engine, ranks, step in (("mesh", 1, 4), ("deepspeed", 2, 8)):
        forget_after(run, step)
        words = (f"parallelism.engine={engine}", f"parallelism.data={ranks}")
        program(f"resume={run}", *words, "parallelism.zero=1")
        left = STEPS - step
        assert column(run, "step", "resume")[-1] == step
        assert column(run, "loss")[-left:] == pytest.approx(uninterrupted[-left:], rel=1e-6)
        assert column(run, "loss", "held_out")[-1] == pytest.approx(held_out, rel=1e-6)
