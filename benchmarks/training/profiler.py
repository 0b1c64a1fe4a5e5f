"""How much time does the profiler cost, idle and active?

The recipe's miniature trains on random tokens in one process. Each round has a step without a
profiler callback, a step with an idle callback and a profiled step, in rotating order. A step
is timed from its batch until its record is saved; starting the profiler and writing the profile
are not included. The idle callback is also timed alone, because the intervals of the ratios are
wide on a busy host. Exit status 1 unless the idle callback alone takes less than 1 % of a step
and the interval of the idle ratio starts at 1 or below.

    python -m benchmarks.training.profiler recipe=NAME [key=value ...]
"""

import statistics
import time
from typing import Any, cast

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import run_script
from benchmarks.ratios import Ratio, paired_ratio, to_interval
from benchmarks.training.drawn_run import compose_with_defaults, measure_and_save, train_drawn
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


class ProfilerAlternation(Callback):
    """Switch between the kinds of steps, and record their seconds."""

    def __init__(self, *, folder: RunFolder) -> None:
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self._folder = folder
        self._kind = KINDS[0]
        self._profiler: ProfilerCallback | None = None
        self.last: ProfilerCallback | None = None
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        round_number, index = divmod(pl_module.progress.step, len(KINDS))
        self._kind = KINDS[(round_number + index) % len(KINDS)]
        self._profiler = None if self._kind == "off" else self._make_callback(pl_module)
        if self._profiler is not None:
            self._profiler.on_train_start(trainer, pl_module)
            self.last = self._profiler
        self._start = time.perf_counter()
        if self._profiler is not None:
            self._profiler.on_train_batch_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if self._profiler is not None and self._kind == "idle":
            self._profiler.on_train_batch_end(trainer, pl_module)
        seconds = time.perf_counter() - self._start
        if self._profiler is not None and self._kind == "profiled":
            self._profiler.on_train_batch_end(trainer, pl_module)
        if pl_module.progress.step > WARMUP_STEPS:
            self.seconds[self._kind].append(seconds)

    def _make_callback(self, module: Pretraining) -> ProfilerCallback:
        """Return a callback that profiles the next step, or a step that is never reached."""
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


def time_callback(profiler: ProfilerCallback, module: Pretraining) -> float:
    """Return the seconds per step of an idle callback alone."""
    trainer, start = cast("Trainer", None), time.perf_counter()
    for _ in range(ALONE):
        profiler.on_train_batch_start(trainer, module)
        profiler.on_train_batch_end(trainer, module)
    return (time.perf_counter() - start) / ALONE


def measure_steps(words: list[str]) -> dict[str, Any]:
    """Train, and compare the times of the three kinds of steps."""
    steps, module = train_drawn(
        compose_with_defaults(words, WORDS),
        lambda folder: ProfilerAlternation(folder=folder),
        most_steps=WARMUP_STEPS + len(KINDS) * ROUNDS,
    )
    idle, profiled = (
        paired_ratio(steps.seconds[kind], steps.seconds["off"]) for kind in KINDS[1:]
    )
    off = statistics.median(steps.seconds["off"])
    assert steps.last is not None
    alone = time_callback(steps.last, module)
    return {
        "device": str(module.device),
        "rounds": ROUNDS,
        "step_seconds": {kind: statistics.median(steps.seconds[kind]) for kind in KINDS},
        "idle_seconds_alone": alone,
        "idle_fraction_alone": alone / off,
        "idle_ratio": idle,
        "profiled_ratio": profiled,
    }


def ratios_of(figures: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of the steps, and the cost of an idle callback alone."""
    return [
        Ratio(
            "a step next to a profile that is not due",
            "no profile",
            at_most=1.0,
            judged="low",
            **to_interval(figures["idle_ratio"]),
        ),
        Ratio(
            "a step and what such a profile computes alone",
            "no profile",
            1 + figures["idle_fraction_alone"],
            at_most=MOST_IDLE,
        ),
        Ratio("a profiled step", "no profile", **to_interval(figures["profiled_ratio"])),
    ]


def main(words: list[str]) -> int:
    """Measure and save the result."""
    shape = {"recipe": [*WORDS, *words], "rounds": ROUNDS}
    return measure_and_save("profiler", measure_steps, ratios_of, words, shape)


if __name__ == "__main__":
    run_script(main)
