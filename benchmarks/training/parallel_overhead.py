"""How much time does each parallel axis cost, compared with two independent processes?

Both sides have the same work and the same cores. The two ranks of a layout share a global
batch; two independent processes have half of it each and do not communicate. The extra time of
a layout is communication, waiting and repeated computation. A pipeline of 2 stages and m
microbatches waits for 1 / m of its computing time on any machine (the bubble,
https://arxiv.org/abs/2104.04473, section 2.2). The independent pair runs before, between and
after the layouts; ratios use the medians of one run.

    python -m benchmarks.training.parallel_overhead recipe=NAME
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.training.drawn_run import StepRecorder, start_drawn, train_rank
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.train.trainer import rank_here

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


def compose_layout(recipe: str, words: Sequence[str], sequences: int) -> Recipe:
    """Compose the miniature with a layout and a batch of ``sequences``."""
    budget = (f"budget.global_batch_tokens={sequences * LENGTH}", "parallelism.data=1")
    by_key = {word.partition("=")[0]: word for word in budget}
    by_key |= {f"parallelism.{word.partition('=')[0]}": f"parallelism.{word}" for word in words}
    return compose_recipe(read_point([recipe, *SIZE, *by_key.values()]))


def measure_rank(path: Path) -> None:
    """Train in this process and write the seconds of its steps into the run folder."""
    recorder = StepRecorder()
    folder = train_rank(path, [recorder], STEPS)
    if rank_here() == 0:
        folder.write_json("seconds.json", {"seconds": recorder.seconds[WARMUP_STEPS:]})


def measure_layout(recipe: Recipe, home: Path) -> list[float]:
    """Run the ranks of a recipe and return the seconds of steps."""
    run = start_drawn(recipe, home, "benchmarks.training.parallel_overhead")
    seconds: list[float] = run.read_json("seconds.json")["seconds"]
    return seconds


def measure_independent(word: str, home: Path) -> list[float]:
    """Run two processes with half of the batch each; return the seconds of their steps."""
    with ProcessPoolExecutor(2) as pool:
        sides = pool.map(measure_half, (word, word), (home / "left", home / "right"))
        return [second for side in sides for second in side]


def measure_half(word: str, home: Path) -> list[float]:
    """Run one process with half of the batch."""
    return measure_layout(compose_layout(word, (), SEQUENCES // 2), home)


def measure_all(recipe: str, home: Path) -> dict[str, list[float]]:
    """Measure the layouts, and the independent pair between them."""
    seconds: dict[str, list[float]] = {INDEPENDENT: []}
    for number, (name, words) in enumerate(LAYOUTS.items()):
        if number % 3 == 0:
            seconds[INDEPENDENT] += measure_independent(recipe, home / f"independent-{number}")
        layout = compose_layout(recipe, words, SEQUENCES)
        seconds[name] = measure_layout(layout, home / f"layout-{number}")
    seconds[INDEPENDENT] += measure_independent(recipe, home / "independent-last")
    return seconds


def ratios_of(seconds: Mapping[str, Sequence[float]]) -> list[Ratio]:
    """Divide the seconds of each layout by the seconds of the independent pair."""
    independent = seconds[INDEPENDENT]
    return [
        Ratio(f"{name}{suffix}", "two processes", summary(values) / summary(independent))
        for name, values in seconds.items()
        if name != INDEPENDENT
        for suffix, summary in (("", statistics.median), (", fastest steps", min))
    ]


def main(words: Sequence[str]) -> int:
    """Run the benchmark, or one rank of a run folder."""
    (word,) = words
    if not word.startswith("recipe="):
        measure_rank(Path(word))
        return 0
    with tempfile.TemporaryDirectory() as home:
        seconds = measure_all(word, Path(home))
    shape = {
        "recipe": [word, *SIZE],
        "sequences": SEQUENCES,
        "sequence_length": LENGTH,
        "steps": STEPS - WARMUP_STEPS,
    }
    return save_benchmark("parallel_overhead", shape, {"seconds": seconds}, ratios_of(seconds))


if __name__ == "__main__":
    run_script(main, min_words=1, max_words=1)
