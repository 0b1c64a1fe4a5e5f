"""Batch ramp-up in closed form, and numbers that follow from a recipe (steps, FLOPs a token).

Megatron-LM's ``--rampup-batch-size`` (``megatron/microbatches.py``): the batch grows from
``start`` to ``full`` in equal increments, each held for an equal share of the ramp's samples. A
step's batch is decided before it, so a plateau ends with the step that crosses its border.
Megatron divides in floating point, which may round a border away; integers cannot. On BLOOM's
ramps both take the same steps.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from components.config.schema.types import Section
from components.config.shape import ModelShape
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


class ParameterCounts(Section):
    """Parameters by what they are; ``padding`` is beside the total, not in it."""

    total: int
    active: int
    embedding: int
    expert: int
    padding: int

    @classmethod
    def of(cls, shape: ModelShape) -> Self:
        return cls(**{name: getattr(shape, f"{name}_parameters") for name in cls.model_fields})


class FlopsPerToken(Section):
    """FLOPs of forward and backward for one token, without any recomputation.

    ``full`` counts the whole attention matrix, ``causal`` half of it. Six for each parameter
    that a token is multiplied with (its experts; the tied matrix once; no look-up), and
    12 x layers x attention width x sequence for the attention products (Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1, in its per-token form).
    """

    full: int
    causal: int

    @classmethod
    def of(cls, shape: ModelShape, sequence_length: int) -> Self:
        looked_up = shape.position_parameters
        if not shape.tied_embeddings:
            looked_up += shape.vocab_size * shape.dim
        products = 6 * (shape.active_parameters - looked_up)
        width = shape.attention.num_heads * shape.attention.head_dim
        attention = 12 * shape.num_layers * width * sequence_length
        return cls(full=products + attention, causal=products + attention // 2)


class DerivedNumbers(Section):
    """All derived numbers of one recipe."""

    parameters: ParameterCounts
    tokens_per_step: int
    samples_per_step: int
    steps: int
    ranks: int
    microbatches_per_step: int
    layers_by_stage: tuple[int, ...]
    flops_per_token: FlopsPerToken
