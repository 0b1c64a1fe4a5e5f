"""Batch ramp-up in closed form, and the microbatch sizes that divide the batches.

As with Megatron-LM's ``--rampup-batch-size`` (``megatron/microbatches.py``), the batch grows
from ``start`` to ``full`` in equal increments, each for an equal share of the ramp's samples. A
step's batch is fixed before the step, so a plateau ends with the step that crosses its border.
Integers are used: Megatron's floating point may round a border away (not on BLOOM's ramps).
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple, Self

from components.config.limits import check_at_least, check_at_most
from components.config.schema.sections import Budget
from components.config.suggestions import list_divisors
from components.errors import RecipeError


class BatchStage(NamedTuple):
    """Consecutive steps of one batch size: first step, samples before it, batch size."""

    first_step: int
    first_sample: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class BatchRamp:
    """Batch ramp: samples of each step, as a function of the samples consumed before it.

    No length, no increments, or increments that miss the full batch are a RecipeError.
    """

    full_samples: int
    start_samples: int
    increment_samples: int
    ramp_samples: int

    @classmethod
    def from_constant(cls, full_samples: int) -> Self:
        """Return a ramp with ``full_samples`` in every step."""
        n = full_samples
        return cls(full_samples=n, start_samples=n, increment_samples=1, ramp_samples=0)

    @classmethod
    def from_budget(cls, budget: Budget) -> Self:
        """Return the ramp of a budget, with tokens converted to samples."""
        length, ramp = budget.sequence_length, budget.ramp_up
        full = budget.global_batch_tokens // length
        if isinstance(ramp, str):
            return cls.from_constant(full)
        return cls(
            full_samples=full,
            start_samples=ramp.start_tokens // length,
            increment_samples=ramp.increment_tokens // length,
            ramp_samples=ramp.over_tokens // length,
        )

    def __post_init__(self) -> None:
        full, start, increment = self.full_samples, self.start_samples, self.increment_samples
        check_at_least("budget.global_batch_tokens", full, "one sequence,", 1)
        check_at_least("budget.ramp_up.start_tokens", start, "one sequence,", 1)
        check_at_most("budget.ramp_up.start_tokens", start, "sequences per full batch,", full)
        if increment < 1 or (full - start) % increment:
            problem = f"steps of {increment:,} samples do not reach {full:,} from {start:,}"
            fix = f"use a divisor of {full - start:,} samples"
            raise RecipeError("budget.ramp_up.increment_tokens", problem, fix)
        if self.ramp_samples < 0 or (start < full) != (self.ramp_samples > 0):
            problem = f"{self.ramp_samples:,} samples cannot ramp from {start:,} to {full:,}"
            fix = "set start_tokens below the full batch, or set budget.ramp_up=none"
            raise RecipeError("budget.ramp_up.over_tokens", problem, fix)

    def consumed_after(self, step: int) -> int:
        """Return the number of samples seen after ``step`` steps."""
        here = next(p for p in reversed(self.batch_stages) if p.first_step <= step)
        return here.first_sample + (step - here.first_step) * here.samples

    def count_steps(self, total_samples: int) -> int:
        """Return the smallest number of steps that sees at least ``total_samples``."""
        here = next(p for p in reversed(self.batch_stages) if p.first_sample <= total_samples)
        return here.first_step - (here.first_sample - total_samples) // here.samples

    @cached_property
    def batch_stages(self) -> tuple[BatchStage, ...]:
        """All plateaus in order; the last has the full batch."""
        plateaus = []
        step = consumed = 0
        for index in range(self._increments):
            border = -(-(index + 1) * self.ramp_samples // self._increments)  # rounded up
            if consumed < border:  # otherwise the last step skipped this size
                samples = self.start_samples + index * self.increment_samples
                plateaus.append(BatchStage(step, consumed, samples))
                steps = -((consumed - border) // samples)  # rounded up
                step, consumed = step + steps, consumed + steps * samples
        return (*plateaus, BatchStage(step, consumed, self.full_samples))

    @property
    def _increments(self) -> int:
        return (self.full_samples - self.start_samples) // self.increment_samples


def fits_schedule(microbatches: int, *, pipeline: int, schedule: str) -> bool:
    """Return whether ``schedule`` can run ``microbatches`` on ``pipeline`` ranks.

    With fewer microbatches than ranks some ranks are always idle, and torch's 1F1B refuses
    this. Interleaved schedules need rounds of equal size with at least one microbatch per rank
    (``number_of_rounds`` in torch.distributed.pipelining.schedules). DualPipeV needs one
    microbatch per stage.
    """
    if pipeline == 1:
        return True
    rounds = microbatches // pipeline if schedule in {"interleaved", "zero_bubble"} else 1
    fewest = fewest_microbatches(pipeline, schedule)
    return microbatches >= fewest and microbatches % rounds == 0


def fewest_microbatches(pipeline: int, schedule: str) -> int:
    """Return the smallest number of microbatches for ``schedule`` on ``pipeline`` ranks."""
    return 2 * pipeline if schedule == "dualpipev" else pipeline


def microbatch_sizes(
    ramp: BatchRamp, *, replicas: int, pipeline: int, schedule: str
) -> tuple[int, ...]:
    """Return the microbatch sizes, in sequences, that divide every batch of the run.

    ``replicas`` data ranks share a batch. A size also divides the ramp's start and increments.
    """
    whole = [plateau.samples for plateau in ramp.batch_stages]
    helpings = gcd(*whole)
    if ramp.ramp_samples:
        helpings = gcd(helpings, ramp.start_samples, ramp.increment_samples)
    share, rest = divmod(helpings, replicas)

    def fits_batches(size: int) -> bool:
        counts = [samples // (replicas * size) for samples in whole]
        return all(fits_schedule(n, pipeline=pipeline, schedule=schedule) for n in counts)

    return () if rest else tuple(size for size in list_divisors(share) if fits_batches(size))
