"""What a plan says of each phase of a run."""

from pydantic import BaseModel

from components.config.layout import AXES
from components.planner.interruptions import HOUR
from components.planner.memory import Verdict
from components.planner.plan import Plan


class PlannedPhase(BaseModel, frozen=True):
    """One phase of a run; ``device_hours`` are those of its steps, without what stops them."""

    name: str
    first_token: int
    tokens: int
    steps: int
    sequence_length: int
    tokens_per_step: int
    layout: dict[str, int]
    step_seconds: float | None
    device_hours: float | None
    peak_bytes: int
    verdict: Verdict


def planned_phase(plan: Plan, place: int) -> PlannedPhase:
    """Sum up one phase of a plan."""
    one, hours = plan.phases[place], None
    span, job, clock = one.recipe.span, one.job, one.recipe.clock
    first = max(span.first_step, one.recipe.first_step)  # those before are its parent's
    if plan.course is not None:
        hours = plan.course.phases[place].useful / HOUR * job.layout.ranks
    return PlannedPhase(
        name=span.name,
        first_token=clock.tokens_after(first),
        tokens=span.end_token - clock.tokens_after(first),
        steps=span.end_step - first,
        sequence_length=span.sequence_length,
        tokens_per_step=job.tokens_per_step,
        layout={axis: getattr(job.layout, axis) for axis in AXES},
        step_seconds=None if one.step is None else one.step.total,
        device_hours=hours,
        peak_bytes=round(one.memory.peak),
        verdict=one.memory.verdict,
    )
