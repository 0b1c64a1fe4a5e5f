"""Whole runs through torch's compiler: it compiles what trains, and only at the beginning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import column, tiny
from tests.life.together import begin, train_together

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

DEEP = (
    "parallelism.compile=layers",
    "model.num_layers=9",  # more than torch makes graphs of one function
    "parallelism.microbatch_sequences=2",
    "budget.total_tokens=2_048",
    "checkpoint.every_tokens=1_024",
    "evaluation.every_tokens=1_024",
    "evaluation.max_windows_per_source=4",
)
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {  # the graphs of a rank; the words
    "tensor 2, mlp again": (3, ("tensor=2", "recompute=[mlp]")),
    "tensor 2, by operator": (
        *(1, ("tensor=2", "sequence_parallel=true", "recompute=selective")),
    ),
    "experts over 2": (2, ("expert=2", "data=1")),  # before them in a layer, and after
    "context 2, by operator": (8, ("context=2", "recompute=selective")),
    "zero 3, every third layer by operator": (
        *(2, ("data=2", "zero=3", "recompute=selective", "recompute_every=3")),
    ),
    "DeepSpeed's zero 2": (1, ("engine=deepspeed", "data=2", "zero=2")),
}
Run = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    """All runs of two ranks, and all of one, where no warning of the compiler is pytest's."""
    runs = {}
    for name, (_, keys) in LAYOUTS.items():
        recipe = ("recipe=mula7b_a1b",) if "experts" in name else ()
        words = (*DEEP, *recipe, "cluster.ranks=2", *(f"parallelism.{key}" for key in keys))
        runs[name] = begin(home, name, *tiny(*words))
    train_together([*runs.values()], 2)
    profiled = ("parallelism.compile=layers", "profiler.first_step=4", "profiler.steps=1")
    alone = {
        "eager": ("parallelism.compile=none",),
        "compiled": profiled,
        "all again": (*DEEP, "parallelism.recompute=full"),
    }
    runs |= {name: begin(home, name, *tiny(*words)) for name, words in alone.items()}
    train_together([runs[name] for name in alone], 1)
    return runs.__getitem__


def results_of(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "results.json").read_text())
    return results


def test_a_run_is_compiled_once_and_not_for_evaluation(run: Run) -> None:
    eager, compiled = (results_of(run(name)) for name in ("eager", "compiled"))
    assert eager["compiler"] == {"graphs": 0, "recompiles": 0}
    assert compiled["compiler"] == {"graphs": 1, "recompiles": 0}
    (profile,) = (run("compiled") / "profile").glob("rank-*[0-9].json")
    assert json.loads(profile.read_text())["compiler"] == compiled["compiler"]
    losses = column(run("eager"), "loss")
    # Sums in another order, in float32.
    assert column(run("compiled"), "loss") == pytest.approx(losses, rel=1e-4)
    # Held-out windows are of other lengths than the batches; before step 1 nothing differs.
    assert compiled["held_out"]["first"] == eager["held_out"]["first"]


@pytest.mark.parametrize("layout", [*LAYOUTS, "all again"])
def test_nine_layers_share_their_graphs_in_every_layout(layout: str, run: Run) -> None:
    graphs, _ = LAYOUTS.get(layout, (1, ()))
    assert results_of(run(layout))["compiler"] == {"graphs": graphs, "recompiles": 0}
