"""What do expert ranks save that divide the state of what all of them hold (EPSO)?

Four ranks, data 2 x expert 2, train a miniature twice from the same weights: plain, where each
expert rank repeats the dense weights' state and update, and expert-aware. State is counted in
live tensors and must be what the formula says; the time is that of everything after the last
backward pass: averaging gradients, norm, update, spreading weights. In float64, where rounding
turns no choice of an expert, both end in equal weights.
Optimus's times are beside, https://arxiv.org/abs/2604.00785, table 3, with the state's ratio at
the published sizes and layouts by the same formula.

    python -m benchmarks.training.expert_optimizer recipe=NAME [published=NAME=RATIO ...]
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from safetensors.torch import load_file, save_file

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, keep_result
from benchmarks.training.drawn_run import start_drawn
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.engine.mesh_engine import MeshEngine
from components.run.folder import RunFolder
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer, rank_here

MODULE = "benchmarks.training.expert_optimizer"
STEPS, WARMUP_STEPS, ROUNDS = 10, 3, 3
STATE_BYTES = 8  # a number has two moments in float32
EXACT = tuple(f"precision.{key}=float64" for key in ("compute", "accumulate", "reduce"))
LAYOUT = ("parallelism.data=2", "parallelism.expert=2", "parallelism.zero=1")
SIDES = {
    "plain": "parallelism.expert_aware=false",
    "aware": "parallelism.expert_aware=true",
}
SIZE = ("scale=mini", "budget.sequence_length=64", "parallelism.pipeline=1")


class StepTimer(Callback):
    """Time what follows the backward passes, and keep what is left after the last step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.state_bytes = 0
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        assert isinstance(pl_module.engine, MeshEngine)
        run = pl_module.engine.microbatches.run

        def then_start(batch: torch.Tensor, scale: float) -> None:
            run(batch, scale)
            torch.distributed.barrier()  # nobody waits for another's backward pass
            self._began = time.perf_counter()

        watched: Any = pl_module.engine.microbatches
        watched.run = then_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        state = pl_module.engine.optimizer.state.values()
        moments = [v for one in state for k, v in one.items() if k != "step"]
        self.state_bytes = sum(moment.numel() * moment.itemsize for moment in moments)


def compose(recipe: str, *words: str) -> Recipe:
    """Compose the miniature in the layout of four ranks."""
    return compose_recipe(read_point([recipe, *SIZE, *LAYOUT, *words]))


def state_bytes(dense: int, experts: int, *, data: int, expert: int, aware: bool) -> float:
    """State of one stage's weights on a rank, where rows divide evenly."""
    pieces = data * expert if aware else data
    return STATE_BYTES * (dense / pieces + experts / (data * expert))


def published_ratio(name: str) -> float:
    """Compute plain over aware, on average over stages, for a published size and layout."""
    recipe = compose_recipe(read_point([f"recipe={name}", "scale=full"]))
    counts, degrees = recipe.derived.parameters, recipe.parallelism
    sides = [
        state_bytes(
            counts.total - counts.expert,
            counts.expert,
            data=degrees.data,
            expert=degrees.expert,
            aware=aware,
        )
        for aware in (False, True)
    ]
    return sides[0] / sides[1]


def measure_rank(path: Path) -> None:
    """Train in this process; rank 0 leaves what it saw, and all weights."""
    folder, watch = RunFolder(path), StepTimer()
    module, data = load_run(folder, read_recipe(folder.recipe))
    trainer = make_trainer(
        recipe=module.recipe, callbacks=[watch, Keeper(path)], most_steps=STEPS
    )
    trainer.fit(module, datamodule=data)
    if rank_here() == 0:
        seen = {"seconds": watch.seconds[WARMUP_STEPS:], "state_bytes": watch.state_bytes}
        folder.write_json("seen.json", seen)


class Keeper(Callback):
    """Keep the last weights, gathered by all ranks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.progress.step == STEPS:
            weights = {name: w.clone() for name, w in pl_module.engine.weights()}
            if rank_here() == 0:
                save_file(weights, self._folder / "weights.safetensors")


def largest_difference(sides: Sequence[RunFolder]) -> float:
    """Compare weights after the last step, relative to each weight's largest value."""
    one, other = (load_file(side.path / "weights.safetensors") for side in sides)
    return max(
        float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one
    )


def measure(recipe: str, home: Path) -> dict[str, Any]:
    """Run both sides in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    held: dict[str, int] = {}
    for turn in range(ROUNDS):
        for name in seconds:
            run = start_drawn(compose(recipe, SIDES[name]), home / f"{name}-{turn}", MODULE)
            seen = run.read_json("seen.json")
            seconds[name] += seen["seconds"]
            held[name] = seen["state_bytes"]
    exact = [
        start_drawn(compose(recipe, side, *EXACT), home / f"exact-{name}", MODULE)
        for name, side in SIDES.items()
    ]
    counts = compose(recipe).derived.parameters
    dense = counts.total + counts.padding - counts.expert
    by_formula = {
        name: state_bytes(dense, counts.expert, data=2, expert=2, aware=name == "aware")
        for name in seconds
    }
    return {
        "seconds": seconds,
        "state_bytes": held,
        "state_bytes_by_formula": by_formula,
        "largest_relative_weight_difference_in_float64": largest_difference(exact),
    }


def ratios_of(result: dict[str, Any]) -> list[Ratio]:
    """Compare ours with the formula and with the plain optimizer; add what is published."""
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
            Ratio(f"{name}, {which}", "plain", figures[key])
            for name, figures in result["published"].items()
            for key, which in (
                ("state", "state by the formula"),
                ("optimizer_speedup", "time as Optimus published it"),
            )
        ),
    ]


def main(words: Sequence[str]) -> int:
    """Compare, or be one of the ranks of a run folder."""
    if words[0].startswith("recipe="):
        return compare(words[0], [word.removeprefix("published=") for word in words[1:]])
    measure_rank(Path(words[0]))
    return 0


def compare(recipe: str, published: Sequence[str]) -> int:
    """Measure, and keep the result."""
    with tempfile.TemporaryDirectory() as home:
        result = measure(recipe, Path(home))
    medians = {name: statistics.median(values) for name, values in result["seconds"].items()}
    result["ratio_seconds_median"] = medians["plain"] / medians["aware"]
    held = result["state_bytes"]
    result["ratio_state_bytes"] = held["plain"] / held["aware"]
    speedups = dict(word.split("=") for word in published)
    result["published"] = {
        name: {"state": published_ratio(name), "optimizer_speedup": float(speedup)}
        for name, speedup in speedups.items()
    }
    result |= circumstances(
        peer="the same optimizer with the dense state repeated on expert ranks; Optimus's "
        "published times",
        convention="plain over expert-aware; seconds from the last backward pass to the end "
        "of the step, wall clock, four ranks with one thread each, float32, gloo",
        shape={
            "recipe": [recipe, *SIZE, *LAYOUT],
            "steps": STEPS - WARMUP_STEPS,
            "rounds": ROUNDS,
        },
    )
    return keep_result("expert_optimizer", result, ratios_of(result))


if __name__ == "__main__":
    enter(main, least=1)
