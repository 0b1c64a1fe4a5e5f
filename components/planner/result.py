"""The result of a plan: one typed model from which text, JSON and page are read."""

from typing import Any

from pydantic import BaseModel

from components.config.layout import AXES
from components.config.schema.recipe import Recipe
from components.config.schema.sections import AssumedValue, PublishedFigure
from components.planner.memory import Verdict
from components.planner.plan import Bill, Plan
from components.planner.rates import PlannedTime
from components.planner.search_result import LayoutsFound
from components.planner.software import Calibration

_TIME_KEYS = ("step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


class PlannedLayout(BaseModel, frozen=True):
    """Degrees of the layout, and what it is laid out on."""

    data: int
    tensor: int
    pipeline: int
    expert: int
    context: int
    zero: int
    nodes: int
    devices_per_node: int
    microbatches: int
    layers_by_stage: tuple[int, ...]


class PlannedMemory(BaseModel, frozen=True):
    """Bytes of the fullest rank, of a device, and of each pipeline rank's parts."""

    peak_bytes: int
    device_bytes: int
    usable_bytes: int
    verdict: Verdict
    by_stage: tuple[dict[str, int], ...]


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
    """A figure of the machine that nobody has measured."""

    figure: str
    problem: str
    remedy: str


class PlanResult(BaseModel, frozen=True):
    """A plan as ``output=json`` promises it; bytes, seconds, hours and days.

    ``time`` and ``bill`` are null where the profile lacks what a step's time needs.
    """

    recipe: str
    cluster: str
    layout: PlannedLayout
    memory: PlannedMemory
    time: PlannedTime | None
    bill: Bill | None
    published: dict[str, ComparedFigure | PublishedFigure]
    assumed: dict[str, AssumedValue]
    calibration: CalibrationSummary | None
    missing: tuple[MissingFigure, ...]
    search: LayoutsFound | None

    def as_json(self) -> dict[str, Any]:
        """Return the tree; the keys of what is not predicted are there, and null."""
        tree = self.model_dump(mode="json")
        if self.time is None:
            tree["time"] = dict.fromkeys(_TIME_KEYS)
        if self.bill is None:
            tree["bill"] = dict.fromkeys(Bill.model_fields)
        if self.search is None:
            del tree["search"]
        return tree


def plan_result(recipe: Recipe, plan: Plan, search: LayoutsFound | None = None) -> PlanResult:
    """Sum up a plan of ``recipe``, and the search that its layout comes from."""
    job, time = plan.job, plan.rates
    memory = PlannedMemory(
        peak_bytes=round(plan.memory.peak),
        device_bytes=plan.hardware.memory_bytes,
        usable_bytes=plan.memory.usable_bytes,
        verdict=plan.memory.verdict,
        by_stage=tuple(rank.parts() for rank in plan.memory.ranks),
    )
    # As sources name them. The rates that papers print count the whole attention and what they
    # recompute.
    predictions = {
        "memory_bytes": memory.peak_bytes,
        "step_seconds": getattr(time, "step_seconds", None),
        "tokens_per_second_per_device": getattr(time, "tokens_per_second_per_device", None),
        "tflops_per_device": getattr(time, "tflops_per_device_hardware", None),
        "device_hours": getattr(plan.bill, "device_hours", None),
        "energy_kwh": getattr(plan.bill, "energy_kwh", None),
    }
    return PlanResult(
        recipe=recipe.name,
        cluster=recipe.cluster.name,
        layout=PlannedLayout(
            **{name: getattr(job.layout, name) for name in (*AXES, "zero")},
            nodes=recipe.cluster.nodes,
            devices_per_node=recipe.cluster.devices_per_node,
            microbatches=job.microbatches,
            layers_by_stage=job.layout.layers,
        ),
        memory=memory,
        time=time,
        bill=plan.bill,
        published={
            name: _compared(item, predictions[name]) if name in predictions else item
            for name, item in recipe.published.items()
        },
        assumed=dict(recipe.assumed),
        calibration=_calibration(plan.calibration),
        missing=tuple(
            MissingFigure(figure=item.path, problem=item.problem, remedy=item.remedy)
            for item in plan.missing
        ),
        search=search,
    )


def _calibration(found: Calibration | None) -> CalibrationSummary | None:
    if found is None:
        return None
    error = found.time_error.held_out
    return CalibrationSummary(
        **{name: getattr(found, name) for name in ("fitted_on", "layouts")},
        median_error=error.median,
        p90_error=error.p90,
    )


def _compared(item: PublishedFigure, predicted: float | None) -> PublishedFigure:
    """Set the prediction beside a published number, as a fraction of it."""
    if not isinstance(item.value, int | float):
        return item
    deviation = None if predicted is None else predicted / item.value - 1
    return ComparedFigure(**item.model_dump(), predicted=predicted, deviation=deviation)
