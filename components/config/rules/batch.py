"""Rules of batches: each divides among ranks and microbatches, and suits the schedule."""

from itertools import count

from components.config.batch_ramp import (
    fewest_microbatches,
    fits_schedule,
    microbatch_sizes,
    neighbours,
)
from components.config.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.errors import RecipeError


def check_microbatches(recipe: Recipe) -> None:
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


def _fits(microbatches: int, degrees: Parallelism) -> bool:
    return fits_schedule(microbatches, pipeline=degrees.pipeline, schedule=degrees.schedule)


def _refusal(recipe: Recipe, samples: int, microbatches: int) -> RecipeError:
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
