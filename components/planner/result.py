"""The result of a plan: one typed model for terminal, JSON and page."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from components.config.recipe import Recipe
from components.config.schema.sections import AssumedValue, Parallelism, PublishedFigure
from components.errors import RecipeError
from components.planner.cost import CostEstimate
from components.planner.experts import load_factor
from components.planner.interruptions import HOUR
from components.planner.memory import Verdict
from components.planner.plan import Plan
from components.planner.rates import PlannedTime, planned_time
from components.planner.recompute import PlannedRecomputation, price_recompute
from components.planner.search_result import LayoutsFound
from components.planner.software import Calibration
from components.planner.time import plan_time
from components.planner.tree import PlannedTree

_TIME_KEYS = ("step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


Degrees = Annotated[Parallelism, PlainSerializer(lambda layout: layout.degrees)]


class PlannedLayout(BaseModel, frozen=True):
    """A layout, what it is laid out on, and the layers of each stage."""

    parallelism: Degrees
    nodes: int
    devices_per_node: int
    microbatches: int
    layers_by_stage: tuple[int, ...]

    @model_serializer(mode="wrap")
    def _flatten(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        others = serialize(self)
        return {**others.pop("parallelism"), "zero": self.parallelism.zero, **others}


class PlannedPhase(BaseModel, frozen=True):
    """One phase of a run; ``device_hours`` are those of its steps, without interruptions."""

    name: str
    first_token: int
    tokens: int
    steps: int
    sequence_length: int
    tokens_per_step: int
    layout: Degrees
    step_seconds: float | None
    device_hours: float | None
    peak_bytes: int
    verdict: Verdict


class PlannedMemory(BaseModel, frozen=True):
    """Bytes of the fullest rank, of a device, and of each pipeline rank's parts."""

    peak_bytes: int
    device_bytes: int
    usable_bytes: int
    verdict: Verdict
    by_stage: tuple[dict[str, int], ...]


class PlannedExperts(BaseModel, frozen=True):
    """What a step of a mixture of experts takes longer than it might, in seconds.

    ``path_seconds`` than by grouped products, ``load_seconds`` than at even load, where the
    fullest expert rank has ``load_factor`` times the mean, ``plain_seconds`` than by an
    expert-aware optimizer.
    """

    path: str
    path_seconds: float
    load_factor: float
    fullest_expert: float
    load_seconds: float
    plain_seconds: float


class ComparedFigure(PublishedFigure):
    """A published figure beside the prediction; ``deviation`` is a fraction of it."""

    predicted: int | float | None
    deviation: float | None


class CalibrationSummary(BaseModel, frozen=True):
    """What of the cluster's own runs stands behind the plan."""

    fitted_on: str
    layouts: int
    median_error: float
    p90_error: float


class MissingFigure(BaseModel, frozen=True):
    """A figure of the machine that nobody has measured, or a limit of its queues."""

    figure: str
    problem: str
    remedy: str


class PlanResult(BaseModel, frozen=True):
    """A plan as ``output=json`` promises it; bytes, seconds, hours and days.

    ``time`` and ``bill`` are null where the profile lacks what a step's time needs.
    """

    recipe: str
    cluster: str
    scale: str
    layout: PlannedLayout
    memory: PlannedMemory
    recomputation: PlannedRecomputation | None
    experts: PlannedExperts | None
    time: PlannedTime | None
    bill: CostEstimate | None
    published: dict[str, ComparedFigure | PublishedFigure]
    assumed: dict[str, AssumedValue]
    calibration: CalibrationSummary | None
    missing: tuple[MissingFigure, ...]
    limit: MissingFigure | None
    search: LayoutsFound | None
    phases: tuple[PlannedPhase, ...]
    children: PlannedTree | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the tree; the keys of what is not predicted are there, and null."""
        tree = self.model_dump(mode="json")
        if self.time is None:
            tree["time"] = dict.fromkeys(_TIME_KEYS)
        if self.bill is None:
            tree["bill"] = dict.fromkeys(CostEstimate.model_fields)
        for name in ("search", "phases", "children"):
            if not getattr(self, name):
                del tree[name]
        return tree


def plan_result(recipe: Recipe, plan: Plan, search: LayoutsFound | None = None) -> PlanResult:
    """Sum up a plan of ``recipe``, and the search that its layout comes from."""
    job, time = plan.job, planned_time(plan)
    memory = PlannedMemory(
        peak_bytes=plan.peak_bytes,
        device_bytes=plan.hardware.memory_bytes,
        usable_bytes=plan.memory.usable_bytes,
        verdict=plan.verdict,
        by_stage=tuple(rank.parts() for rank in plan.memory.ranks),
    )
    # As sources name them. The rates that papers print count the whole attention and what they
    # recompute.
    derived, checkpoints = recipe.derived, getattr(plan.bill, "checkpoints", None)
    predictions = {
        "parameters": derived.parameters.total,
        "active_parameters": derived.parameters.active,
        "total_tokens": recipe.budget.total_tokens,
        "tokens_per_step": derived.tokens_per_step,
        "microbatches_per_step": derived.microbatches_per_step,
        "steps": derived.steps,
        "devices": derived.ranks,
        "checkpoint_bytes": getattr(checkpoints, "bytes", None),
        "checkpoint_seconds": getattr(checkpoints, "write_seconds", None),
        "memory_bytes": memory.peak_bytes,
        "step_seconds": getattr(time, "step_seconds", None),
        "tokens_per_second_per_device": getattr(time, "tokens_per_second_per_device", None),
        "tflops_per_device": getattr(time, "tflops_per_device_hardware", None),
        "device_hours": getattr(plan.bill, "device_hours", None),
        "energy_kwh": getattr(plan.bill, "energy_kwh", None),
        "kg_co2e": plan.bill.emissions.kg_co2e if plan.bill else None,
    }
    return PlanResult(
        recipe=recipe.name,
        cluster=recipe.cluster.name,
        scale=recipe.scale.name,
        layout=PlannedLayout(
            parallelism=job.layout,
            nodes=recipe.cluster.nodes,
            devices_per_node=recipe.cluster.devices_per_node,
            microbatches=job.microbatches,
            layers_by_stage=job.layers_by_stage,
        ),
        memory=memory,
        recomputation=price_recompute(job, plan.hardware, plan.software)
        if job.layout.recompute not in {"none", ()}
        else None,
        experts=_experts(plan),
        time=time,
        bill=plan.bill,
        published={
            name: _compared(item, predictions[name]) if name in predictions else item
            for name, item in recipe.published.items()
        },
        assumed=dict(recipe.assumed),
        calibration=_calibration(plan.calibration),
        limit=None if plan.limit is None else _told(plan.limit),
        missing=tuple(_told(item) for item in plan.missing),
        search=search,
        phases=tuple(_phase(plan, place) for place, _ in enumerate(plan.phases)),
    )


def _phase(plan: Plan, place: int) -> PlannedPhase:
    phase, hours = plan.phases[place], None
    span, job, clock = phase.recipe.span, phase.job, phase.recipe.clock
    # The parent of a run takes the steps before its first one.
    first = max(span.first_step, phase.recipe.first_step)
    if plan.run is not None:
        hours = plan.run.work.phases[place].useful / HOUR * job.layout.ranks
    return PlannedPhase(
        name=span.name,
        first_token=clock.tokens_after(first),
        tokens=span.end_token - clock.tokens_after(first),
        steps=span.end_step - first,
        sequence_length=span.sequence_length,
        tokens_per_step=job.tokens_per_step,
        layout=job.layout,
        step_seconds=phase.step_seconds,
        device_hours=hours,
        peak_bytes=phase.peak_bytes,
        verdict=phase.verdict,
    )


def _told(error: RecipeError) -> MissingFigure:
    return MissingFigure(figure=error.path, problem=error.problem, remedy=error.remedy)


def _experts(plan: Plan) -> PlannedExperts | None:
    job, speed = plan.job, plan.software.speed
    if not job.shape.mlp.num_experts or plan.time is None:
        return None
    step = plan.time.total
    path, load, plain = (
        step - plan_time(other, plan.hardware, speed).total
        for other in (
            replace(job, expert_path="grouped"),
            replace(job, even_load=True),
            job.with_layout(expert_aware=True),
        )
    )
    return PlannedExperts(
        path=job.expert_path,
        path_seconds=path,
        load_factor=load_factor(job, speed),
        fullest_expert=1.0 if job.even_load else speed.fullest_expert,
        load_seconds=load,
        plain_seconds=plain,
    )


def _calibration(found: Calibration | None) -> CalibrationSummary | None:
    if found is None:
        return None
    error = found.time_error.held_out
    return CalibrationSummary(
        fitted_on=found.fitted_on,
        layouts=found.layouts,
        median_error=error.median,
        p90_error=error.p90,
    )


def _compared(item: PublishedFigure, predicted: float | None) -> PublishedFigure:
    if not isinstance(item.value, int | float):
        return item
    deviation = None if predicted is None else predicted / item.value - 1
    return ComparedFigure(**item.model_dump(), predicted=predicted, deviation=deviation)
