"""What do guards cost? Steps with and without them take turns in one process.

The recipe's miniature trains on drawn tokens by the real path, one short sequence a step, so
that a step is far shorter, and a guard's part of it far larger, than in any real run. Before
each step the guard is exchanged: all rules with full windows, or no rule at all, in pairs whose
order alternates. A step is timed from its batch until its record is kept, by the guard as well.
What a guard computes in a step is also timed alone, which tells in how short a step it is 1 %.
Exit status 1 unless the whole interval of the paired ratio lies below 1.01; where the host has
other work it may be too wide to tell.

    python -m benchmarks.training.guards recipe=NAME [key=value ...]
"""

import statistics
import time
from typing import Any

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import enter
from benchmarks.ratios import Ratio, interval, paired_ratio
from benchmarks.training.drawn_run import compare_steps, compose, train_drawn
from components.config.recipe import Recipe
from components.fault_tolerance.guards import StepGuard
from components.train.module import Pretraining

MOST_GUARDED = 1.01
PAIRS, WARMUP_STEPS, ALONE = 200, 4, 2_000
WORDS = (
    *("guard=spikes", "cluster.ranks=1"),
    *("budget.sequence_length=128", "budget.global_batch_tokens=128"),
    "parallelism.microbatch_sequences=1",
)


class GuardTurns(Callback):
    """Exchange the guard before each step, and keep what the steps took."""

    def __init__(self, *, on: StepGuard, off: StepGuard) -> None:
        self.seconds: dict[str, list[float]] = {"on": [], "off": []}
        self._guards = {"on": on, "off": off}
        self._turn = "on"
        self._began = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        pair, second = divmod(pl_module.progress.step, 2)
        self._turn = "on" if (pair + second) % 2 else "off"
        pl_module.guard = self._guards[self._turn]
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.progress.step > WARMUP_STEPS:
            self.seconds[self._turn].append(time.perf_counter() - self._began)


def watchful(recipe: Recipe) -> StepGuard:
    """Make a guard whose windows are full, of figures that no step of the miniature exceeds."""
    guard = StepGuard(rules=recipe.guard, scales_loss=False)
    for step in range(1_000):
        guard.took(loss=100.0 + step % 7, gradient_norm=100.0 + step % 7)
    return guard


def asleep(recipe: Recipe) -> StepGuard:
    """Make a guard without a rule."""
    rules = recipe.guard.model_copy(
        update=dict.fromkeys(("non_finite", "loss_spike", "gradient_norm_spike"), "none")
    )
    return StepGuard(rules=rules, scales_loss=False)


def alone_seconds(guard: StepGuard) -> float:
    """Time what a guard computes in a step, without any step around it."""
    began = time.perf_counter()
    for _ in range(ALONE):
        guard.judge(loss=2.0, gradient_norm=1.0)
        guard.took(loss=101.0, gradient_norm=101.0)
        guard.state()
    return (time.perf_counter() - began) / ALONE


def measure(words: list[str], pairs: int = PAIRS) -> dict[str, Any]:
    """Train, and put the times of both kinds of steps side by side."""
    recipe = compose(words, WORDS)
    turns, module = train_drawn(
        recipe,
        lambda folder: GuardTurns(on=watchful(recipe), off=asleep(recipe)),
        most_steps=WARMUP_STEPS + 2 * pairs,
    )
    on, off = (statistics.median(turns.seconds[name]) for name in ("on", "off"))
    alone = alone_seconds(watchful(recipe))
    return {
        "device": str(module.device),
        "pairs": len(turns.seconds["on"]),
        "step_seconds": {"on": on, "off": off},
        "paired_ratio": paired_ratio(turns.seconds["on"], turns.seconds["off"]),
        "alone_seconds": alone,
        "alone_fraction": alone / off,
        "one_percent_of_a_step_of_seconds": alone / (MOST_GUARDED - 1),
    }


def ratios_of(figures: dict[str, Any]) -> list[Ratio]:
    """Take the ratio of the steps, and what the guard computes alone."""
    return [
        Ratio(
            "a guarded step",
            "no guard",
            at_most=MOST_GUARDED,
            judged="high",
            **interval(figures["paired_ratio"]),
        ),
        Ratio(
            "a step and what its guard computes alone",
            "no guard",
            1 + figures["alone_fraction"],
            at_most=MOST_GUARDED,
        ),
    ]


def main(words: list[str]) -> int:
    """Measure, and keep the result."""
    return compare_steps(
        "guards",
        measure,
        ratios_of,
        words,
        peer="the same steps without a rule of the guard",
        alone="the guard computes",
        shape={"recipe": [*WORDS, *words], "pairs": PAIRS},
    )


if __name__ == "__main__":
    enter(main)
