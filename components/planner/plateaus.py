"""A run's steps by batch size, and which of them cross a cadence on the clock of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from components.planner.job import Job
from components.planner.software import SoftwareSpeed
from components.planner.time import StepTime, plan_time
from components.spec.hardware import Hardware
from components.spec.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps of one batch size in a row: how many, of how many tokens, after how many."""

    steps: int
    tokens_before: int
    tokens_per_step: int

    @property
    def tokens_after(self) -> int:
        return self.tokens_before + self.steps * self.tokens_per_step


def stretches(recipe: Recipe) -> Iterator[Stretch]:
    """Cut the run's steps at the borders of its ramp-up; without one all are alike."""
    length, steps = recipe.budget.sequence_length, recipe.derived.steps
    plateaus = recipe.ramp.plateaus
    for index, plateau in enumerate(plateaus):
        later = plateaus[index + 1].first_step if index + 1 < len(plateaus) else steps
        taken = min(later, steps) - plateau.first_step
        if taken > 0:
            yield Stretch(
                steps=taken,
                tokens_before=plateau.first_sample * length,
                tokens_per_step=plateau.samples * length,
            )


def crossings(run: tuple[Stretch, ...], every_tokens: int) -> int:
    """Count the steps that pass a multiple of ``every_tokens``, and the last one."""
    count = 0
    for stretch in run:
        passed = stretch.tokens_after // every_tokens - stretch.tokens_before // every_tokens
        # A step longer than the cadence crosses several multiples at once.
        count += min(passed, stretch.steps)
    last = run[-1]
    before = last.tokens_after - last.tokens_per_step
    crossed_at_end = last.tokens_after // every_tokens > before // every_tokens
    return count + (not crossed_at_end)


def steps_seconds(
    run: tuple[Stretch, ...], job: Job, full: StepTime, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Add up all steps, each batch with as many microbatches as it has; ``full`` is known."""
    total = 0.0
    for stretch in run:
        # The recipe's rules let only batches through that divide into whole microbatches.
        count = job.microbatches * stretch.tokens_per_step // job.tokens_per_step
        is_full = count == job.microbatches
        fewer = replace(job, microbatches=count)
        step = full if is_full else plan_time(fewer, hardware, speed)
        total += stretch.steps * step.total
    return total
