"""The plan of one step: of a run, of one of its phases, or of a layout that a search found."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.memory import Memory, plan_memory
from components.planner.software import SoftwareModel
from components.planner.time import StepTime, plan_time


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Memory and time of a full step; ``time`` is None where the profile lacks a figure."""

    recipe: Recipe
    job: TrainingJob
    memory: Memory
    time: StepTime | None = None


def plan_steps(
    recipes: Iterable[Recipe], hardware: Hardware, software: SoftwareModel
) -> tuple[tuple[StepPlan, ...], RecipeError | None]:
    """Plan a step of each recipe; without times, and why, where one cannot be predicted."""
    steps = []
    for recipe in recipes:
        job = job_from_recipe(recipe)
        memory = plan_memory(job, hardware, software.memory)
        steps.append(StepPlan(recipe=recipe, job=job, memory=memory))
    try:
        times = [plan_time(step.job, hardware, software.speed) for step in steps]
    except RecipeError as error:
        return tuple(steps), error
    timed = (replace(step, time=time) for step, time in zip(steps, times, strict=True))
    return tuple(timed), None
