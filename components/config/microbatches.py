"""Microbatches: how many a rank computes in a step, and whether a schedule takes that many."""

from itertools import count
from math import gcd
from typing import TYPE_CHECKING

from components.config.batch_ramp import BatchRamp
from components.config.schema.sections import Parallelism
from components.config.shape import divisors
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


def fits_schedule(microbatches: int, *, pipeline: int, schedule: str) -> bool:
    """Whether ``schedule`` runs ``microbatches`` on ``pipeline`` ranks.

    Fewer microbatches than ranks leave ranks idle all the time, and torch's 1F1B refuses them.
    The interleaved schedules deal them in rounds of at least one a rank, all equally long
    (``number_of_rounds`` in torch.distributed.pipelining.schedules).
    """
    if pipeline == 1 or microbatches < pipeline:
        return pipeline == 1
    dealt_in_rounds = schedule in {"interleaved", "zero_bubble"}
    return not dealt_in_rounds or microbatches % (microbatches // pipeline) == 0


def check_microbatches(recipe: "Recipe") -> None:
    """Hold that every batch divides into as many microbatches as the schedule takes.

    Raises:
        RecipeError: a batch that the data ranks cannot share, or too few microbatches or an
            awkward number of them, also on a batch that only the ramp-up has.
    """
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    samples = recipe.budget.global_batch_tokens // length
    group = degrees.data * degrees.expert * degrees.microbatch_sequences
    if samples % group:
        key, batches = "budget.global_batch_tokens", sorted(set(neighbours(samples, group)))
        parts = f"microbatches of {degrees.microbatch_sequences}"
        ranks = f"{degrees.data * degrees.expert} data ranks"
        nearest = " or ".join(f"{key}={number * length:_}" for number in batches)
        problem = f"{samples} sequences a step do not divide among {ranks} in {parts}"
        remedy = f"set {nearest}: {'these are' if batches[1:] else 'this is'} the nearest"
        raise RecipeError(key, problem, remedy)
    for plateau in recipe.ramp.plateaus:
        if not _fits(plateau.samples // group, degrees):
            raise _refusal(recipe, plateau.samples, plateau.samples // group)


def neighbours(value: int, divisor: int) -> tuple[int, int]:
    """Nearest positive multiples of ``divisor`` below and above ``value``."""
    below = value // divisor * divisor
    return max(below, divisor), below + divisor


def _fits(microbatches: int, degrees: Parallelism) -> bool:
    return fits_schedule(microbatches, pipeline=degrees.pipeline, schedule=degrees.schedule)


def _refusal(recipe: "Recipe", samples: int, microbatches: int) -> RecipeError:
    """Name batches that fit with these microbatches, and microbatches that fit the batch."""
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    replicas, pipeline = degrees.data * degrees.expert, degrees.pipeline
    need = f"{pipeline} pipeline ranks need as many at least"
    if rounds := microbatches // pipeline:
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
