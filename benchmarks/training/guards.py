"""How much time do guards cost?

The recipe's miniature trains on random tokens, one short sequence per step. A step is far
shorter, and the share of a guard far larger, than in real runs. The guard is replaced before
each step: all rules with full windows, or no rule, in pairs of alternating order. A step is
timed from its batch until its record is saved, also by the guard. The guard is also timed
alone; a hundred times that is the step in which it takes 1 %. Exit status 1 unless the whole
interval of the paired ratio is below 1.01; other work on the host widens the interval.

    python -m benchmarks.training.guards recipe=NAME [key=value ...]
"""

import statistics
import time
from typing import Any

from lightning.pytorch import Callback, Trainer

from benchmarks.entry import run_script
from benchmarks.ratios import Ratio, paired_ratio, to_interval
from benchmarks.training.drawn_run import compose_with_defaults, measure_and_save, train_drawn
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


class GuardAlternation(Callback):
    """Replace the guard before each step, and record the seconds of steps."""

    def __init__(self, *, on: StepGuard, off: StepGuard) -> None:
        self.seconds: dict[str, list[float]] = {"on": [], "off": []}
        self._guards = {"on": on, "off": off}
        self._current = "on"
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        pair, second = divmod(pl_module.progress.step, 2)
        self._current = "on" if (pair + second) % 2 else "off"
        pl_module.guard = self._guards[self._current]
        self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.progress.step > WARMUP_STEPS:
            self.seconds[self._current].append(time.perf_counter() - self._start)


def build_guard(recipe: Recipe) -> StepGuard:
    """Return a guard with full windows of values that no step of the miniature exceeds."""
    guard = StepGuard(rules=recipe.guard, scales_loss=False)
    for step in range(1_000):
        guard.record_step(loss=100.0 + step % 7, gradient_norm=100.0 + step % 7)
    return guard


def build_empty_guard(recipe: Recipe) -> StepGuard:
    """Return a guard without rules."""
    rules = recipe.guard.model_copy(
        update=dict.fromkeys(("non_finite", "loss_spike", "gradient_norm_spike"), "none")
    )
    return StepGuard(rules=rules, scales_loss=False)


def time_guard(guard: StepGuard) -> float:
    """Return the seconds per step of a guard alone."""
    start = time.perf_counter()
    for _ in range(ALONE):
        guard.check_step(loss=2.0, gradient_norm=1.0)
        guard.record_step(loss=101.0, gradient_norm=101.0)
        guard.export_state()
    return (time.perf_counter() - start) / ALONE


def measure_steps(words: list[str], pairs: int = PAIRS) -> dict[str, Any]:
    """Train, and compare the times of steps with and without guards."""
    recipe = compose_with_defaults(words, WORDS)
    steps, module = train_drawn(
        recipe,
        lambda folder: GuardAlternation(on=build_guard(recipe), off=build_empty_guard(recipe)),
        most_steps=WARMUP_STEPS + 2 * pairs,
    )
    on, off = (statistics.median(steps.seconds[name]) for name in ("on", "off"))
    alone = time_guard(build_guard(recipe))
    return {
        "device": str(module.device),
        "pairs": len(steps.seconds["on"]),
        "step_seconds": {"on": on, "off": off},
        "paired_ratio": paired_ratio(steps.seconds["on"], steps.seconds["off"]),
        "alone_seconds": alone,
        "alone_fraction": alone / off,
        "one_percent_of_a_step_of_seconds": alone / (MOST_GUARDED - 1),
    }


def ratios_of(figures: dict[str, Any]) -> list[Ratio]:
    """Return the ratio of the steps, and the cost of the guard alone."""
    return [
        Ratio(
            "a guarded step",
            "no guard",
            at_most=MOST_GUARDED,
            judged="high",
            **to_interval(figures["paired_ratio"]),
        ),
        Ratio(
            "a step and what its guard computes alone",
            "no guard",
            1 + figures["alone_fraction"],
            at_most=MOST_GUARDED,
        ),
    ]


def main(words: list[str]) -> int:
    """Measure and save the result."""
    shape = {"recipe": [*WORDS, *words], "pairs": PAIRS}
    return measure_and_save("guards", measure_steps, ratios_of, words, shape)


if __name__ == "__main__":
    run_script(main)
