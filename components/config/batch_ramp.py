"""Batches: their ramp-up in closed form, their microbatches, and what follows (steps, FLOPs).

Megatron-LM's ``--rampup-batch-size`` (``megatron/microbatches.py``): the batch grows from
``start`` to ``full`` in equal increments, each held for an equal share of the ramp's samples. A
step's batch is decided before it, so a plateau ends with the step that crosses its border.
Megatron divides in floating point, which may round a border away; integers cannot. On BLOOM's
ramps both take the same steps.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import Field

from components.config.schema.sections import Parallelism
from components.config.schema.types import Section
from components.config.shape import ModelShape, divisors
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


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


def check_microbatches(recipe: "Recipe") -> None:
    """Raise a RecipeError for a batch, of the ramp-up too, that does not divide as it must."""
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    samples = recipe.budget.global_batch_tokens // length
    group = degrees.data * degrees.expert * degrees.microbatch_sequences
    if samples % group:
        key, batches = "budget.global_batch_tokens", neighbours(samples, group)
        parts = f"microbatches of {degrees.microbatch_sequences}"
        ranks = f"{degrees.data * degrees.expert} data ranks"
        nearest = " or ".join(f"{key}={number * length:_}" for number in batches)
        problem = f"{samples} sequences a step do not divide among {ranks} in {parts}"
        remedy = f"set {nearest}: {'these are' if batches[1:] else 'this is'} the nearest"
        raise RecipeError(key, problem, remedy)
    for plateau in recipe.ramp.plateaus:
        if not _fits(plateau.samples // group, degrees):
            raise _refusal(recipe, plateau.samples, plateau.samples // group)


def neighbours(value: int, divisor: int) -> list[int]:
    """Nearest positive multiples of ``divisor``: above ``value``, and below if there is one."""
    below = value // divisor * divisor
    return [number for number in (below, below + divisor) if number > 0]


def nearest_multiples(value: int, divisor: int) -> str:
    """Say which multiples are near, as a way out."""
    found = [f"{number:_}" for number in neighbours(value, divisor)]
    return f"the nearest that {'are' if found[1:] else 'is'}: {' and '.join(found)}"


def _fits(microbatches: int, degrees: Parallelism) -> bool:
    return fits_schedule(microbatches, pipeline=degrees.pipeline, schedule=degrees.schedule)


def _refusal(recipe: "Recipe", samples: int, microbatches: int) -> RecipeError:
    """Name batches that fit with these microbatches, and microbatches that fit the batch."""
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    replicas, pipeline = degrees.data * degrees.expert, degrees.pipeline
    fewest = fewest_microbatches(pipeline, degrees.schedule)
    need = (
        f"{pipeline} pipeline ranks need {'as many' if fewest == pipeline else fewest} at least"
    )
    if microbatches >= fewest:
        rounds = microbatches // pipeline
        multiple = f"a multiple of its {rounds} rounds"
        need = f"{degrees.schedule} on {pipeline} pipeline ranks needs {multiple}"
    # There is one above: every multiple of the pipeline ranks fits.
    below = [number for number in range(1, microbatches) if _fits(number, degrees)][-1:]
    above = next(number for number in count(microbatches + 1) if _fits(number, degrees))
    unit = replicas * degrees.microbatch_sequences * length
    tokens = " or ".join(f"{number * unit:,}" for number in [*below, above])
    way = f"batches that do: {tokens} tokens"
    sizes = microbatch_sizes(
        recipe.ramp, replicas=replicas, pipeline=pipeline, schedule=degrees.schedule
    )
    if sizes:
        way += "; or parallelism.microbatch_sequences=" + " or ".join(map(str, sizes))
    key, of = "budget.global_batch_tokens", ""
    if samples < recipe.budget.global_batch_tokens // length:
        key, of = "budget.ramp_up", " of the ramp-up"
    makes = f"{microbatches} microbatches a step and rank, but {need}"
    return RecipeError(key, f"the batch{of} of {samples * length:,} tokens makes {makes}", way)


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


class ParameterCounts(Section):
    """Parameters by what they are; ``padding`` and ``mtp`` are beside the total, not in it."""

    total: int
    active: int
    embedding: int
    expert: int
    padding: int
    mtp: int = Field(exclude_if=lambda count: not count)

    @classmethod
    def of(cls, shape: ModelShape) -> Self:
        return cls(**{name: getattr(shape, f"{name}_parameters") for name in cls.model_fields})


class FlopsPerToken(Section):
    """FLOPs of forward and backward for one token, without any recomputation.

    ``full`` counts the whole attention matrix, ``causal`` half of it. Six for each parameter
    that a token is multiplied with (its experts; the tied matrix once; no look-up), and
    12 x layers x attention width x sequence for the attention products (Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1, in its per-token form). A layer with a window has that for
    the sequence (as in OLMo-core and nanochat), and ``causal`` its visible pairs. Each depth of
    ``mtp`` is a further layer like the last, with its map of two vectors and the head again.
    """

    full: int
    causal: int

    @classmethod
    def of(cls, shape: ModelShape, sequence_length: int) -> Self:
        looked_up = shape.position_parameters
        if not shape.tied_embeddings:
            looked_up += shape.vocab_size * shape.dim
        depth, idle = shape.mtp_depth, (shape.mlp.num_experts or 1) - (shape.mlp.top_k or 1)
        again = shape.layer_parameters - idle * shape.mlp.expert_parameters(shape.dim)
        again += shape.mtp_whole_parameters + shape.vocab_size * shape.dim
        products = 6 * (shape.active_parameters - looked_up + depth * again)
        heads = shape.attention
        width = heads.num_heads * (heads.head_dim + heads.values)  # of scores, and of values
        seen = shape.visible_keys(sequence_length)
        last = seen[-1]
        full = 6 * width * (sum(seen) + depth * last)
        pairs = depth * (last - last**2 / (2 * sequence_length))
        causal = round(6 * width * (shape.causal_keys(sequence_length) + pairs))
        return cls(full=products + full, causal=products + causal)


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
