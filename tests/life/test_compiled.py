"""Whole runs through torch's compiler: it compiles what trains, and only at the beginning."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import TINY, command, entries, environment

DEEP = (
    "parallelism.compile=layers",
    "model.num_layers=12",  # more than torch makes graphs of one function
    "parallelism.microbatch_sequences=2",
    "budget.total_tokens=4_096",
    "checkpoint.every_tokens=2_048",
    "evaluation.every_tokens=2_048",
)
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {  # the graphs of a rank; the words
    "tensor 2, mlp again": (3, ("parallelism.tensor=2", "parallelism.recompute=[mlp]")),
    "tensor 2, by operator": (
        1,
        (
            *("parallelism.tensor=2", "parallelism.sequence_parallel=true"),
            "parallelism.recompute=selective",
        ),
    ),
    "DeepSpeed's zero 2": (
        1,
        ("parallelism.engine=deepspeed", "parallelism.data=2", "parallelism.zero=2"),
    ),
    "experts over 2": (  # what precedes them in a layer, and what follows
        2,
        ("recipe=mula7b_a1b", "parallelism.expert=2", "parallelism.data=2"),
    ),
    "context 2, by operator": (
        8,
        ("parallelism.context=2", "parallelism.recompute=selective"),
    ),
    "zero 3, every third layer by operator": (
        2,
        (
            *("parallelism.data=2", "parallelism.zero=3", "parallelism.recompute=selective"),
            "parallelism.recompute_every=3",
        ),
    ),
    "all again": (1, ("parallelism.recompute=full",)),
}


def run_of(home: Path, *words: str) -> tuple[dict[str, Any], list[float]]:
    """Train in a process of its own, where the compiler's warnings are none of pytest's.

    Return the results and the steps' losses.
    """
    run = home / str(len(list(home.iterdir())))
    named = {word.partition("=")[0] for word in words}
    words = (*(word for word in TINY if word.partition("=")[0] not in named), *words)
    asked = command(*words, f"run={run}")
    ended = subprocess.run(asked, cwd=home, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
    results = json.loads((run / "results.json").read_text())
    for profile in run.glob("profile/rank-*[0-9].json"):
        assert json.loads(profile.read_text())["compiler"] == results["compiler"]
    return results, [one["loss"] for one in entries(run, "step")]


@pytest.mark.long
def test_a_run_is_compiled_once_for_all_its_steps_and_never_to_evaluate(home: Path) -> None:
    eager, losses = run_of(home, "parallelism.compile=none")
    words = ("parallelism.compile=layers", "profiler.first_step=4", "profiler.steps=1")
    compiled, its_losses = run_of(home, *words)
    assert eager["compiler"] == {"graphs": 0, "recompiles": 0}
    assert compiled["compiler"] == {"graphs": 1, "recompiles": 0}
    assert its_losses == pytest.approx(losses, rel=1e-4)  # sums in another order, in float32
    # Held-out windows are of other lengths than the batches; before step 1 nothing differs.
    assert compiled["held_out"]["first"] == eager["held_out"]["first"]


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_twelve_layers_share_their_graphs_in_every_layout(home: Path, layout: str) -> None:
    graphs, words = LAYOUTS[layout]
    results, _ = run_of(home, *DEEP, *words)
    assert results["compiler"] == {"graphs": graphs, "recompiles": 0}
