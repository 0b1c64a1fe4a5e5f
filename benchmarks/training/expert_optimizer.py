"""How much time and memory does the expert-aware optimizer (EPSO) save?

Four ranks, data 2 x expert 2, train a miniature twice from the same weights. With the plain
optimizer each expert rank repeats state and update of the dense weights; the expert-aware one
divides them among expert ranks. The state of the live tensors must equal the formula. The time
is everything after the last backward pass: gradient averaging, norm, update, all-gather of
weights. The last weights are compared in float64, where rounding changes no choice of experts.
The result includes Optimus's published times (https://arxiv.org/abs/2604.00785, table 3), with
the ratio of the state by the formula at the published sizes and layouts.

    python -m benchmarks.training.expert_optimizer recipe=NAME [published=NAME=RATIO ...]
"""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from safetensors.torch import load_file, save_file

from benchmarks.entry import run_script
from benchmarks.machine import medians_of
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.training.drawn_run import start_drawn, train_rank
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.engine.mesh_engine import MeshEngine
from components.run.folder import RunFolder
from components.train.module import Pretraining
from components.train.trainer import rank_here

MODULE = "benchmarks.training.expert_optimizer"
STEPS, WARMUP_STEPS, ROUNDS = 10, 3, 3
STATE_BYTES = 8  # two moments in float32 per number
EXACT = tuple(f"precision.{key}=float64" for key in ("compute", "accumulate", "reduce"))
LAYOUT = ("parallelism.data=2", "parallelism.expert=2", "parallelism.zero=1")
OPTIMIZERS = {
    "plain": "parallelism.expert_aware=false",
    "aware": "parallelism.expert_aware=true",
}
SIZE = ("scale=mini", "budget.sequence_length=64", "parallelism.pipeline=1")


class StepTimer(Callback):
    """Record the time after the backward passes and the size of the optimizer state.

    The last weights, which all ranks gather, are saved in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: list[float] = []
        self.state_bytes = 0
        self._start = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        assert isinstance(pl_module.engine, MeshEngine)
        microbatches: Any = pl_module.engine.microbatches
        accumulate = microbatches.accumulate_gradients

        def accumulate_then_start(batch: torch.Tensor, scale: float) -> None:
            accumulate(batch, scale)
            torch.distributed.barrier()  # excludes waiting for another rank's backward pass
            self._start = time.perf_counter()

        microbatches.accumulate_gradients = accumulate_then_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)
        state = pl_module.engine.optimizer.state.values()
        moments = [v for values in state for k, v in values.items() if k != "step"]
        self.state_bytes = sum(moment.numel() * moment.itemsize for moment in moments)
        if pl_module.progress.step == STEPS:
            weights = {name: w.clone() for name, w in pl_module.engine.iterate_weights()}
            if rank_here() == 0:
                save_file(weights, self._folder / "weights.safetensors")


def compose_miniature(recipe: str, *words: str) -> Recipe:
    """Compose the miniature in a layout of four ranks."""
    return compose_recipe(read_point([recipe, *SIZE, *LAYOUT, *words]))


def bytes_by_formula(dense: int, experts: int, *, data: int, expert: int, aware: bool) -> float:
    """Return the bytes of optimizer state on a rank, if rows divide evenly."""
    parts = data * expert if aware else data
    return STATE_BYTES * (dense / parts + experts / (data * expert))


def published_ratio(name: str) -> float:
    """Return plain over aware state, averaged over stages, for a published size and layout."""
    recipe = compose_recipe(read_point([f"recipe={name}", "scale=full"]))
    counts, degrees = recipe.derived_numbers.parameters, recipe.parallelism
    state = partial(
        bytes_by_formula,
        counts.total - counts.expert,
        counts.expert,
        data=degrees.data,
        expert=degrees.expert,
    )
    return state(aware=False) / state(aware=True)


def measure_rank(path: Path) -> None:
    """Train in this process; rank 0 writes its measurements and all weights."""
    timer = StepTimer(path)
    folder = train_rank(path, [timer], STEPS)
    if rank_here() == 0:
        figures = {"seconds": timer.seconds[WARMUP_STEPS:], "state_bytes": timer.state_bytes}
        folder.write_json("figures.json", figures)


def largest_difference(runs: Sequence[RunFolder]) -> float:
    """Return the largest difference of weights, relative to each tensor's largest value."""
    plain, aware = (load_file(run.path / "weights.safetensors") for run in runs)
    return max(
        float((aware[name] - weight).abs().max() / weight.abs().max())
        for name, weight in plain.items()
    )


def measure_optimizers(recipe: str, home: Path) -> dict[str, Any]:
    """Train with both optimizers in alternation."""
    seconds: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    state_bytes: dict[str, int] = {}
    for number in range(ROUNDS):
        for name, word in OPTIMIZERS.items():
            miniature = compose_miniature(recipe, word)
            run = start_drawn(miniature, home / f"{name}-{number}", MODULE)
            figures = run.read_json("figures.json")
            seconds[name] += figures["seconds"]
            state_bytes[name] = figures["state_bytes"]
    exact = [
        start_drawn(compose_miniature(recipe, word, *EXACT), home / f"exact-{name}", MODULE)
        for name, word in OPTIMIZERS.items()
    ]
    counts = compose_miniature(recipe).derived_numbers.parameters
    dense = counts.total + counts.padding - counts.expert
    by_formula = {
        name: bytes_by_formula(dense, counts.expert, data=2, expert=2, aware=name == "aware")
        for name in seconds
    }
    return {
        "seconds": seconds,
        "state_bytes": state_bytes,
        "state_bytes_by_formula": by_formula,
        "largest_relative_weight_difference_in_float64": largest_difference(exact),
    }


def ratios_of(result: dict[str, Any]) -> list[Ratio]:
    """Compare with the formula and the plain optimizer; add the published figures."""
    formula = result["state_bytes_by_formula"]
    ours = {
        "state": (result["ratio_state_bytes"], formula["plain"] / formula["aware"]),
        "time": (result["ratio_seconds_median"], 1.0),
    }
    return [
        *(
            Ratio(f"four ranks here, {name}", "plain", value, at_least=least)
            for name, (value, least) in ours.items()
        ),
        *(
            Ratio(f"{name}, {quantity}", "plain", figures[key])
            for name, figures in result["published"].items()
            for key, quantity in (
                ("state", "state by the formula"),
                ("optimizer_speedup", "time as Optimus published it"),
            )
        ),
    ]


def main(words: Sequence[str]) -> int:
    """Run the benchmark, or one rank of a run folder."""
    recipe, *published = words
    if not recipe.startswith("recipe="):
        measure_rank(Path(recipe))
        return 0
    with tempfile.TemporaryDirectory() as home:
        result = measure_optimizers(recipe, Path(home))
    medians, state = medians_of(result["seconds"]), result["state_bytes"]
    result["ratio_seconds_median"] = medians["plain"] / medians["aware"]
    result["ratio_state_bytes"] = state["plain"] / state["aware"]
    speedups = dict(word.removeprefix("published=").split("=") for word in published)
    result["published"] = {
        name: {"state": published_ratio(name), "optimizer_speedup": float(speedup)}
        for name, speedup in speedups.items()
    }
    steps = STEPS - WARMUP_STEPS
    shape = {"recipe": [recipe, *SIZE, *LAYOUT], "steps": steps, "rounds": ROUNDS}
    return save_benchmark("expert_optimizer", shape, result, ratios_of(result))


if __name__ == "__main__":
    run_script(main, min_words=1)
