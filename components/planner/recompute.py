"""The least recomputation that fits (``recompute: auto``).

Asked are nothing, and by operator or whole, every layer, every second one and so on. Of what
fits the device, the one whose step is shortest is chosen, a tight one's weighed with its risk.
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
    """What is recomputed, and in layers of which numbers."""

    recompute: Recompute
    every: int

    def of(self, job: TrainingJob) -> TrainingJob:
        """Put it into a job."""
        return job.with_layout(recompute=self.recompute, recompute_every=self.every)


NOTHING = Choice("none", 1)


def choices(job: TrainingJob) -> Iterator[Choice]:
    """List what may be chosen, roughly in order of cost."""
    yield NOTHING
    if job.layout.schedule == "zero_bubble" and job.layout.pipeline > 1:
        return  # the recipe's rules refuse it
    for every in range(job.shape.num_layers, 0, -1):
        yield Choice("selective", every)
    for every in range(job.shape.num_layers, 0, -1):
        yield Choice("full", every)


def least_that_fits(recipe: Recipe) -> Choice:
    """Choose for a recipe that recomputes nothing; a miniature goes without.

    Raises:
        RecipeError: the cluster has no physical profile, or nothing fits.
    """
    if not isinstance(recipe.scale.shrink, str):
        return NOTHING
    hardware, cluster = recipe.cluster.hardware, recipe.cluster
    if isinstance(hardware, str):
        problem = f"auto, but nobody has measured the cluster {cluster.name!r}: what fits?"
        remedy = f"set {KEY}=none, selective or full, or plan for a machine with a profile"
        raise RecipeError(KEY, problem, remedy)
    job, (software, _) = job_from_recipe(recipe), software_of(cluster)
    planned = [
        (one, plan_memory(one.of(job), hardware, software.memory)) for one in choices(job)
    ]
    fitting = [(one, memory) for one, memory in planned if memory.verdict != "does_not_fit"]
    if not fitting:
        raise _nothing_fits(memory for _, memory in planned)
    costs = [_cost(one.of(job), memory, hardware, software) for one, memory in fitting]
    known = [cost for cost in costs if cost is not None]
    if len(known) == len(costs):
        return fitting[known.index(min(known))][0]
    kinds = [memory.verdict for _, memory in fitting]
    return fitting[kinds.index("fits" if "fits" in kinds else "tight")][0]


def _nothing_fits(planned: Iterable[Memory]) -> RecipeError:
    nearest = min(planned, key=lambda memory: memory.peak)
    need, usable = nearest.peak / GIB, nearest.usable_bytes / GIB
    problem = f"auto: whatever is recomputed, a device needs {need:.1f} GiB of {usable:.1f}"
    remedy = f"share more (parallelism=auto finds a layout), or see the plan of {KEY}=full"
    return RecipeError(KEY, problem, remedy)


def _cost(
    job: TrainingJob, memory: Memory, hardware: Hardware, software: SoftwareModel
) -> float | None:
    """Return seconds of a step, weighed with the risk, or None where a figure is missing."""
    try:
        return penalise_tight(plan_time(job, hardware, software.speed).total, memory.verdict)
    except RecipeError:
        return None
