"""Batches: their ramp-up in closed form, and the microbatches that divide them.

Megatron-LM's ``--rampup-batch-size`` (``megatron/microbatches.py``): the batch grows from
``start`` to ``full`` in equal increments, each held for an equal share of the ramp's samples. A
step's batch is decided before it, so a plateau ends with the step that crosses its border.
Megatron divides in floating point, which may round a border away; integers cannot. On BLOOM's
ramps both take the same steps.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple, Self

from components.config.suggestions import divisors
from components.errors import RecipeError


class Plateau(NamedTuple):
    """Steps of one batch size in a row: the first step, the samples before it, the batch."""

    first_step: int
    first_sample: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class BatchRamp:
    """Samples of each step, as a function of the samples consumed before it.

    Raises:
        RecipeError: counts below 1, a start above the full batch, increments that do not lead
            from the start to the full batch, a ramp without length or without an increment.
    """

    full_samples: int
    start_samples: int
    increment_samples: int
    ramp_samples: int

    @classmethod
    def constant(cls, full_samples: int) -> Self:
        """Take ``full_samples`` in every step."""
        n = full_samples
        return cls(full_samples=n, start_samples=n, increment_samples=1, ramp_samples=0)

    def __post_init__(self) -> None:
        full, start, increment = self.full_samples, self.start_samples, self.increment_samples
        if full < 1:
            problem = f"a batch of {full:,} samples is empty"
            raise RecipeError("budget.global_batch_tokens", problem, "use one sequence or more")
        if not 1 <= start <= full:
            problem = f"{start:,} samples are not between 1 and the full batch's {full:,}"
            remedy = "start with at least one sequence and at most the global batch"
            raise RecipeError("budget.ramp_up.start_tokens", problem, remedy)
        if increment < 1 or (full - start) % increment:
            problem = f"steps of {increment:,} samples do not lead from {start:,} to {full:,}"
            remedy = f"use a divisor of {full - start:,} samples"
            raise RecipeError("budget.ramp_up.increment_tokens", problem, remedy)
        if self.ramp_samples < 0 or (start < full) != (self.ramp_samples > 0):
            problem = f"{self.ramp_samples:,} samples to go from {start:,} to {full:,}"
            remedy = "give a ramp both a length and a way to go, or set budget.ramp_up=none"
            raise RecipeError("budget.ramp_up.over_tokens", problem, remedy)

    def samples_at(self, consumed: int) -> int:
        """The batch of the step before which ``consumed`` samples were seen."""
        if consumed >= self.ramp_samples:
            return self.full_samples
        done = consumed * self._increments // self.ramp_samples
        return self.start_samples + done * self.increment_samples

    def consumed_after(self, step: int) -> int:
        """Samples seen after ``step`` steps."""
        here = next(p for p in reversed(self.plateaus) if p.first_step <= step)
        return here.first_sample + (step - here.first_step) * here.samples

    def steps(self, total_samples: int) -> int:
        """The fewest steps that see ``total_samples`` or more; the last may overshoot."""
        here = next(p for p in reversed(self.plateaus) if p.first_sample <= total_samples)
        return here.first_step - (here.first_sample - total_samples) // here.samples

    @cached_property
    def plateaus(self) -> tuple[Plateau, ...]:
        """All batch sizes that occur, in order; the last is the full batch."""
        found = []
        step = consumed = 0
        while (samples := self.samples_at(consumed)) < self.full_samples:
            found.append(Plateau(step, consumed, samples))
            index = (samples - self.start_samples) // self.increment_samples
            border = -(-(index + 1) * self.ramp_samples // self._increments)  # rounded up
            taken = -((consumed - border) // samples)  # rounded up: it may leap over some
            step, consumed = step + taken, consumed + taken * samples
        return (*found, Plateau(step, consumed, self.full_samples))

    @property
    def _increments(self) -> int:
        return (self.full_samples - self.start_samples) // self.increment_samples


def fits_schedule(microbatches: int, *, pipeline: int, schedule: str) -> bool:
    """Whether ``schedule`` runs ``microbatches`` on ``pipeline`` ranks.

    Fewer microbatches than ranks leave ranks idle all the time, and torch's 1F1B refuses them.
    The interleaved schedules deal them in rounds of at least one a rank, all equally long
    (``number_of_rounds`` in torch.distributed.pipelining.schedules). DualPipeV wants one a
    stage.
    """
    if pipeline == 1:
        return True
    rounds = microbatches // pipeline if schedule in {"interleaved", "zero_bubble"} else 1
    fewest = fewest_microbatches(pipeline, schedule)
    return microbatches >= fewest and microbatches % rounds == 0


def fewest_microbatches(pipeline: int, schedule: str) -> int:
    """Return how many microbatches ``schedule`` needs on ``pipeline`` ranks."""
    return 2 * pipeline if schedule == "dualpipev" else pipeline


def neighbours(value: int, divisor: int) -> list[int]:
    """Nearest positive multiples of ``divisor``: above ``value``, and below if there is one."""
    below = value // divisor * divisor
    return [number for number in (below, below + divisor) if number > 0]


def nearest_multiples(value: int, divisor: int) -> str:
    """Say which multiples are near, as a way out."""
    found = [f"{number:_}" for number in neighbours(value, divisor)]
    return f"the nearest that {'are' if found[1:] else 'is'}: {' and '.join(found)}"


def microbatch_sizes(
    ramp: BatchRamp, *, replicas: int, pipeline: int, schedule: str
) -> tuple[int, ...]:
    """List the sequences that a microbatch may have for every batch of the run to divide.

    ``replicas`` data ranks share a batch; a ramp-up's start and increments divide like it.
    """
    whole = [plateau.samples for plateau in ramp.plateaus]
    helpings = gcd(*whole)
    if ramp.ramp_samples:
        helpings = gcd(helpings, ramp.start_samples, ramp.increment_samples)
    share, rest = divmod(helpings, replicas)

    def fits(size: int) -> bool:
        counts = [samples // (replicas * size) for samples in whole]
        return all(fits_schedule(n, pipeline=pipeline, schedule=schedule) for n in counts)

    return () if rest else tuple(size for size in divisors(share) if fits(size))
