"""What does a profile cost? Steps without, beside an idle one, and profiled take turns.

The recipe's miniature trains on drawn tokens by the real path, in one process. In each round
one step is as in a run that asks for no profile, one has the callback of a profile that is not
due, and one is profiled; their order rotates. A step is timed from its batch until its record
is kept; starting the profiler and writing what it saw lie outside. What an idle callback does
in a step is timed alone, too: on a busy host the intervals of the ratios are wide. Exit status
1 unless that is below 1 % of a step and the idle ratio's interval has 1 in it, or less.

    python -m benchmarks.training.profiler recipe=NAME [key=value ...]
"""

import statistics
import time
from typing import Any, cast

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import enter
from benchmarks.ratios import Ratio, interval, paired_ratio
from benchmarks.training.drawn_run import compare_steps, compose, train_drawn
from components.run.folder import RunFolder
from components.train.callbacks.profiler import GraphCounter, ProfilerCallback
from components.train.module import Pretraining

MOST_IDLE = 1.01
ROUNDS, WARMUP_STEPS, ALONE = 40, 3, 2_000
KINDS = ("off", "idle", "profiled")
WORDS = (
    *("cluster.ranks=1", "profiler.steps=1", "budget.sequence_length=128"),
    *("budget.global_batch_tokens=512", "parallelism.microbatch_sequences=4"),
)


class ProfilerTurns(Callback):
    """Give each step its kind, and keep what the steps took."""

    def __init__(self, *, folder: RunFolder) -> None:
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._folder = folder
        self._kind = KINDS[0]
        self._profiling: ProfilerCallback | None = None
        self.last: ProfilerCallback | None = None
        self._began = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        turn, place = divmod(pl_module.progress.step, len(KINDS))
        self._kind = KINDS[(turn + place) % len(KINDS)]
        self._profiling = None if self._kind == "off" else self._make(pl_module)
        if self._profiling is not None:
            self._profiling.on_train_start(trainer, pl_module)
            self.last = self._profiling
        self._began = time.perf_counter()
        if self._profiling is not None:
            self._profiling.on_train_batch_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if self._profiling is not None and self._kind == "idle":
            self._profiling.on_train_batch_end(trainer, pl_module)
        seconds = time.perf_counter() - self._began
        if self._profiling is not None and self._kind == "profiled":
            self._profiling.on_train_batch_end(trainer, pl_module)
        if pl_module.progress.step > WARMUP_STEPS:
            self.seconds[self._kind].append(seconds)

    def _make(self, module: Pretraining) -> ProfilerCallback:
        """Profile the next step, or one that is a long way off."""
        distance = 1 if self._kind == "profiled" else 1_000_000
        first = module.progress.step + distance
        settings = module.recipe.profiler.model_copy(update={"first_step": first})
        return ProfilerCallback(
            settings=settings,
            folder=self._folder,
            rank=0,
            graphs=GraphCounter(),
            say=lambda text: None,
        )


def alone_seconds(profiling: ProfilerCallback, module: Pretraining) -> float:
    """Time what a callback that is not due does in a step, without any step around it."""
    trainer, began = cast("Trainer", None), time.perf_counter()
    for _ in range(ALONE):
        profiling.on_train_batch_start(trainer, module)
        profiling.on_train_batch_end(trainer, module)
    return (time.perf_counter() - began) / ALONE


def measure(words: list[str]) -> dict[str, Any]:
    """Train, and put the times of the three kinds of steps side by side."""
    turns, module = train_drawn(
        compose(words, WORDS),
        lambda folder: ProfilerTurns(folder=folder),
        most_steps=WARMUP_STEPS + len(KINDS) * ROUNDS,
    )
    idle, profiled = (
        paired_ratio(turns.seconds[kind], turns.seconds["off"]) for kind in KINDS[1:]
    )
    off = statistics.median(turns.seconds["off"])
    assert turns.last is not None
    alone = alone_seconds(turns.last, module)
    return {
        "device": str(module.device),
        "rounds": ROUNDS,
        "step_seconds": {kind: statistics.median(turns.seconds[kind]) for kind in KINDS},
        "idle_seconds_alone": alone,
        "idle_fraction_alone": alone / off,
        "idle_ratio": idle,
        "profiled_ratio": profiled,
    }


def ratios_of(figures: dict[str, Any]) -> list[Ratio]:
    """Take the ratios of the steps, and what a profile that is not due computes alone."""
    return [
        Ratio(
            "a step next to a profile that is not due",
            "no profile",
            at_most=1.0,
            judged="low",
            **interval(figures["idle_ratio"]),
        ),
        Ratio(
            "a step and what such a profile computes alone",
            "no profile",
            1 + figures["idle_fraction_alone"],
            at_most=MOST_IDLE,
        ),
        Ratio("a profiled step", "no profile", **interval(figures["profiled_ratio"])),
    ]


def main(words: list[str]) -> int:
    """Measure, and keep the result."""
    return compare_steps(
        "profiler",
        measure,
        ratios_of,
        words,
        peer="the same steps of a run that asks for no profile",
        alone="a profile that is not due does",
        shape={"recipe": [*WORDS, *words], "rounds": ROUNDS},
    )


if __name__ == "__main__":
    enter(main)
