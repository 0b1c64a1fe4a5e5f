"""Microbatches: how many a rank computes in a step, and whether a schedule takes that many."""

from itertools import count
from math import gcd
from typing import TYPE_CHECKING

from components.config.batch_ramp import BatchRamp
from components.config.schema.sections import Parallelism
from components.errors import RecipeError

if TYPE_CHECKING:
    from components.config.schema.recipe import Recipe


def fits_schedule(microbatches: int, *, pipeline: int, schedule: str) -> bool:
    """Whether ``schedule`` runs ``microbatches`` on ``pipeline`` ranks.

    Fewer microbatches than ranks leave ranks idle all the time, and torch's 1F1B refuses them.
    The interleaved schedules deal them in rounds of at least one a rank, all equally long
    (``number_of_rounds`` in torch.distributed.pipelining.schedules).
    """
    if pipeline == 1:
        return True
    if microbatches < pipeline:
        return False
    if schedule in {"interleaved", "zero_bubble"}:
        return microbatches % (microbatches // pipeline) == 0
    return True


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
        batches = sorted({number * length for number in neighbours(samples, group)})
        nearest = " or ".join(f"budget.global_batch_tokens={tokens:_}" for tokens in batches)
        raise RecipeError(
            "budget.global_batch_tokens",
            f"{samples} sequences a step do not divide among "
            f"{degrees.data * degrees.expert} data ranks in microbatches of "
            f"{degrees.microbatch_sequences}",
            f"set {nearest}: {'these are' if batches[1:] else 'this is'} the nearest",
        )
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
    ramping = samples < recipe.budget.global_batch_tokens // length
    replicas, pipeline = degrees.data * degrees.expert, degrees.pipeline
    need = (
        f"{pipeline} pipeline ranks need as many at least"
        if microbatches < pipeline
        else f"{degrees.schedule} on {pipeline} pipeline ranks needs a multiple of its "
        f"{microbatches // pipeline} rounds"
    )
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
    return RecipeError(
        "budget.ramp_up" if ramping else "budget.global_batch_tokens",
        f"the batch{' of the ramp-up' if ramping else ''} of {samples * length:,} tokens makes "
        f"{microbatches} microbatches a step and rank, but {need}",
        way,
    )


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
    if rest:
        return ()
    return tuple(
        size
        for size in range(1, share + 1)
        if share % size == 0
        and all(
            fits_schedule(samples // (replicas * size), pipeline=pipeline, schedule=schedule)
            for samples in whole
        )
    )
