"""What does each axis cost: a step of two ranks beside two processes that know of no other?

Both sides do the same work with the same cores. In a layout two ranks share a global batch; the
two independent processes have half of it each and never speak. What a layout takes longer is
its communication, its waiting, and what it computes twice. A pipeline of 2 stages and m
microbatches waits for 1 / m of its computing time whatever the machine (the bubble,
https://arxiv.org/abs/2104.04473, section 2.2). The independent pair runs before, between and
after the layouts; ratios are between medians of one run.

    python -m benchmarks.training.parallel_overhead recipe=NAME
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, keep_result
from benchmarks.training.drawn_run import start_drawn
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.run.folder import RunFolder
from components.train.fit import load_run
from components.train.module import Pretraining
from components.train.trainer import make_trainer, rank_here

STEPS, WARMUP_STEPS, SEQUENCES, LENGTH = 12, 3, 8, 256
SIZE = ("scale=mini", "parallelism.microbatch_sequences=1")
LAYOUTS: dict[str, Sequence[str]] = {
    "data": ("data=2", "zero=0"),
    "data, ZeRO 1": ("data=2", "zero=1"),
    "data, ZeRO 2": ("data=2", "zero=2"),
    "data, ZeRO 3": ("data=2", "zero=3"),
    "tensor": ("tensor=2", "sequence_parallel=false"),
    "tensor, sequences": ("tensor=2", "sequence_parallel=true"),
    "pipeline, gpipe": ("pipeline=2", "schedule=gpipe"),
    "pipeline, 1f1b": ("pipeline=2", "schedule=1f1b"),
    "pipeline, interleaved": ("pipeline=2", "schedule=interleaved", "stages_per_rank=2"),
    "pipeline, zero bubble": ("pipeline=2", "schedule=zero_bubble", "stages_per_rank=2"),
}
INDEPENDENT = "independent"


class Timer(Callback):
    """Keep what each step took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        assert pl_module.last is not None
        self.seconds.append(pl_module.last.seconds)


def compose(recipe: str, words: Sequence[str], sequences: int) -> Recipe:
    """Compose the miniature with a batch of so many sequences and the named layout."""
    budget = (f"budget.global_batch_tokens={sequences * LENGTH}", "parallelism.data=1")
    named = {word.partition("=")[0]: word for word in budget}
    named |= {f"parallelism.{word.partition('=')[0]}": f"parallelism.{word}" for word in words}
    return compose_recipe(read_point([recipe, *SIZE, *named.values()]))


def measure_rank(path: Path) -> None:
    """Train in this process and leave the seconds of its steps in the run folder."""
    folder, timer = RunFolder(path), Timer()
    module, data = load_run(folder, read_recipe(folder.recipe))
    trainer = make_trainer(recipe=module.recipe, callbacks=[timer], most_steps=STEPS)
    trainer.fit(module, datamodule=data)
    if rank_here() == 0:
        folder.write_json("seconds.json", {"seconds": timer.seconds[WARMUP_STEPS:]})


def start(recipe: Recipe, home: Path) -> list[float]:
    """Run a recipe's ranks and return what steps took."""
    run = start_drawn(recipe, home, "benchmarks.training.parallel_overhead")
    seconds: list[float] = run.read_json("seconds.json")["seconds"]
    return seconds


def start_independent(word: str, home: Path) -> list[float]:
    """Run two processes at once, half of the batch each, and return what steps of both took."""
    with ProcessPoolExecutor(2) as pool:
        sides = [pool.submit(start_half, word, home / side) for side in ("left", "right")]
        return [second for side in sides for second in side.result()]


def start_half(word: str, home: Path) -> list[float]:
    """Run one process with half of the batch."""
    return start(compose(word, (), SEQUENCES // 2), home)


def measure_all(recipe: str, home: Path) -> dict[str, list[float]]:
    """Measure layouts and the independent pair in turns."""
    seconds: dict[str, list[float]] = {INDEPENDENT: []}
    for number, (name, words) in enumerate(LAYOUTS.items()):
        if number % 3 == 0:
            seconds[INDEPENDENT] += start_independent(recipe, home / f"independent-{number}")
        seconds[name] = start(compose(recipe, words, SEQUENCES), home / f"layout-{number}")
    seconds[INDEPENDENT] += start_independent(recipe, home / "independent-last")
    return seconds


def ratios_of(seconds: Mapping[str, Sequence[float]]) -> list[Ratio]:
    """Divide the seconds of each layout by those of the independent pair."""
    alone = seconds[INDEPENDENT]
    return [
        Ratio(f"{name}{which}", "two processes", take(values) / take(alone))
        for name, values in seconds.items()
        if name != INDEPENDENT
        for which, take in (("", statistics.median), (", fastest steps", min))
    ]


def main(words: Sequence[str]) -> int:
    """Compare, or be one of the ranks of a run folder."""
    if words[0].startswith("recipe="):
        return compare(words[0])
    measure_rank(Path(words[0]))
    return 0


def compare(recipe: str) -> int:
    """Measure, and keep the result."""
    with tempfile.TemporaryDirectory() as home:
        seconds = measure_all(recipe, Path(home))
    context = circumstances(
        peer="two independent processes with half of the batch each",
        convention="seconds a step, wall clock, by two ranks with one thread each; ratio "
        "is to two independent processes with half the batch each; float32, gloo",
        shape={
            "recipe": [recipe, *SIZE],
            "sequences": SEQUENCES,
            "sequence_length": LENGTH,
            "steps": STEPS - WARMUP_STEPS,
        },
    )
    return keep_result("parallel_overhead", context | {"seconds": seconds}, ratios_of(seconds))


if __name__ == "__main__":
    enter(main, least=1, most=1)
