"""Recomputation search (``recompute: auto``): the fastest setting that fits the device.

The candidates are no recomputation, then selective and full recomputation of every layer, every
second layer and so on. A tight one has a penalty for its risk.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.config.schema.sections import Recompute
from components.errors import RecipeError
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.memory import GIB, Memory, plan_memory
from components.planner.search import penalise_tight
from components.planner.software import SoftwareModel, software_of
from components.planner.time import plan_time

KEY = "parallelism.recompute"


class Choice(NamedTuple):
    """Recomputation setting: what is recomputed, and in every how many layers."""

    recompute: Recompute
    every: int

    def apply_to(self, job: TrainingJob) -> TrainingJob:
        """Return the job with this setting."""
        return job.with_layout(recompute=self.recompute, recompute_every=self.every)


NOTHING = Choice("none", 1)


def list_choices(job: TrainingJob) -> Iterator[Choice]:
    """Yield the candidates, roughly in order of cost."""
    yield NOTHING
    if job.layout.schedule == "zero_bubble" and job.layout.pipeline > 1:
        return  # the recipe's rules do not allow recomputation here
    for every in range(job.shape.num_layers, 0, -1):
        yield Choice("selective", every)
    for every in range(job.shape.num_layers, 0, -1):
        yield Choice("full", every)


def least_that_fits(recipe: Recipe) -> Choice:
    """Choose a recipe's recomputation, none for a miniature; RecipeError if nothing fits."""
    if not isinstance(recipe.scale.shrink, str):
        return NOTHING
    hardware, cluster = recipe.cluster.hardware, recipe.cluster
    if isinstance(hardware, str):
        problem = f"auto, but cluster {cluster.name!r} has no measured hardware profile"
        remedy = f"set {KEY}=none, selective or full, or plan for a machine with a profile"
        raise RecipeError(KEY, problem, remedy)
    job, (software, _) = job_from_recipe(recipe), software_of(cluster)
    planned = [
        (choice, plan_memory(choice.apply_to(job), hardware, software.memory))
        for choice in list_choices(job)
    ]
    fitting = [(choice, memory) for choice, memory in planned if memory.is_within_limit]
    if not fitting:
        raise _nothing_fits(memory for _, memory in planned)
    costs = [
        _cost(choice.apply_to(job), memory, hardware, software) for choice, memory in fitting
    ]
    known = [cost for cost in costs if cost is not None]
    if len(known) == len(costs):
        return fitting[known.index(min(known))][0]
    kinds = [memory.memory_verdict for _, memory in fitting]
    return fitting[kinds.index("fits" if "fits" in kinds else "tight")][0]


def _nothing_fits(planned: Iterable[Memory]) -> RecipeError:
    nearest = min(planned, key=lambda memory: memory.fullest_rank_bytes)
    need, usable = nearest.fullest_rank_bytes / GIB, nearest.usable_bytes / GIB
    problem = f"auto: whatever is recomputed, a device needs {need:.1f} GiB of {usable:.1f}"
    remedy = f"share more (parallelism=auto finds a layout), or see the plan of {KEY}=full"
    return RecipeError(KEY, problem, remedy)


def _cost(
    job: TrainingJob, memory: Memory, hardware: Hardware, software: SoftwareModel
) -> float | None:
    """Return a step's seconds including the risk penalty, or None if a number is missing."""
    try:
        return penalise_tight(
            plan_time(job, hardware, software.speed).total_seconds, memory.memory_verdict
        )
    except RecipeError:
        return None
