"""The result of a plan: memory, time and cost of a recipe on its cluster.

Terminal, page and JSON read it, and so do proposals, job scripts and dry runs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer

from components.config.schema.cluster import Hardware
from components.config.schema.sections import Parallelism, PublishedFigure
from components.errors import RecipeError
from components.planner.cost import CostEstimate, PlannedTree
from components.planner.interruptions import HOUR
from components.planner.memory import Memory, Verdict
from components.planner.rates import (
    PlannedExperts,
    PlannedRecomputation,
    PlannedTime,
    price_experts,
    price_recompute,
    rate_step,
)
from components.planner.run_time import RunTimeline
from components.planner.search import LayoutSearch, describe
from components.planner.software import Calibration, SoftwareModel
from components.planner.time import StepPlan

# Nine of ten measured steps differ by less than a third from the prediction on up to 16 nodes
# with measured links; where a figure is missing, the error is unknown and twice that is stated.
ERROR_FRACTION, MISSING_FACTOR = 0.33, 2.0
# Of a step that nobody can predict JSON has these keys, and null.
_TIME_KEYS = ("step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


class PlannedPhase(BaseModel, frozen=True):
    """One phase of a run; ``device_hours`` are those of its steps, without interruptions."""

    name: str
    first_token: int
    tokens: int
    steps: int
    sequence_length: int
    tokens_per_step: int
    layout: Annotated[Parallelism, PlainSerializer(lambda layout: layout.degrees)]
    step_seconds: float | None
    device_hours: float | None
    peak_bytes: int
    verdict: Verdict


class ComparedFigure(PublishedFigure):
    """A published figure beside the prediction; ``deviation`` is a fraction of it."""

    predicted: int | float | None
    deviation: float | None


@dataclass(frozen=True, kw_only=True)
class Plan(StepPlan):
    """Predictions for one recipe; ``run`` is None where ``time`` is.

    In a run with phases job, memory and time are those of the first phase, and ``steps`` has
    all; run and bill are of the whole run.
    ``missing`` names every figure that the plan did without, ``is_guess``: the time of a step
    needed one of them. ``calibration`` is how measured runs of the cluster correct the
    ``software``. ``limit`` is the limit of its queue that the run meets, with the nearest fix.
    ``search`` is the one that the layout comes from, ``children`` are the runs below this one.
    """

    steps: tuple[StepPlan, ...]
    hardware: Hardware
    software: SoftwareModel
    calibration: Calibration | None
    missing: tuple[RecipeError, ...]
    is_guess: bool
    limit: RecipeError | None
    run: RunTimeline | None
    search: "LayoutsFound | None" = None
    children: PlannedTree | None = None

    @property
    def bill(self) -> CostEstimate | None:
        return self.run.cost if self.run else None

    @property
    def fullest(self) -> Memory:
        """The memory of the phase that needs most."""
        return max((step.memory for step in self.steps), key=lambda memory: memory.peak)

    @property
    def error_fraction(self) -> float:
        """By how much a step may be off: nine of ten measured ones were closer."""
        if self.calibration is not None:
            return self.calibration.time_error.held_out.p90
        return ERROR_FRACTION * (MISSING_FACTOR if self.is_guess else 1.0)

    @cached_property
    def rates(self) -> PlannedTime | None:
        return rate_step(self, self.hardware, self.error_fraction)

    @cached_property
    def recomputation(self) -> PlannedRecomputation | None:
        return price_recompute(self, self.hardware, self.software)

    @cached_property
    def experts(self) -> PlannedExperts | None:
        return price_experts(self, self.hardware, self.software)

    @property
    def phases(self) -> tuple[PlannedPhase, ...]:
        """What each phase takes; none of a run without phases."""
        works = self.run.work.phases if self.run else (None,) * len(self.steps)
        phases = (
            _phase(step, None if work is None else work.useful)
            for step, work in zip(self.steps, works, strict=True)
        )
        return tuple(phases) if self.steps[1:] else ()

    @property
    def published(self) -> dict[str, ComparedFigure | PublishedFigure]:
        """The published figures, those with a number beside the plan's own."""
        recipe, derived, rates, bill = self.recipe, self.recipe.derived, self.rates, self.bill
        checkpoints = bill.checkpoints if bill else None
        # As sources name them. The rates that papers print count the whole attention and what
        # they recompute.
        predicted = {
            "parameters": derived.parameters.total,
            "active_parameters": derived.parameters.active,
            "total_tokens": recipe.budget.total_tokens,
            "tokens_per_step": derived.tokens_per_step,
            "microbatches_per_step": derived.microbatches_per_step,
            "steps": derived.steps,
            "devices": derived.ranks,
            "checkpoint_bytes": getattr(checkpoints, "bytes", None),
            "checkpoint_seconds": getattr(checkpoints, "write_seconds", None),
            "memory_bytes": self.memory.peak_bytes,
            "step_seconds": getattr(rates, "step_seconds", None),
            "tokens_per_second_per_device": getattr(
                rates, "tokens_per_second_per_device", None
            ),
            "tflops_per_device": getattr(rates, "tflops_per_device_hardware", None),
            "device_hours": getattr(bill, "device_hours", None),
            "energy_kwh": getattr(bill, "energy_kwh", None),
            "kg_co2e": bill.emissions.kg_co2e if bill else None,
        }
        return {
            name: _compared(item, predicted[name]) if name in predicted else item
            for name, item in recipe.published.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return what ``output=json`` promises: bytes, seconds, hours and days.

        The keys of what is not predicted are there, and null.
        """
        recipe, cluster, layout = self.recipe, self.recipe.cluster, self.job.layout
        tree: dict[str, Any] = {
            "recipe": recipe.name,
            "cluster": cluster.name,
            "scale": recipe.scale.name,
            "layout": {
                **layout.degrees,
                "zero": layout.zero,
                "nodes": cluster.nodes,
                "devices_per_node": cluster.devices_per_node,
                "microbatches": self.job.microbatches,
                "layers_by_stage": [*self.job.layers_by_stage],
            },
            "memory": {
                "peak_bytes": self.memory.peak_bytes,
                "device_bytes": self.hardware.memory_bytes,
                "usable_bytes": self.memory.usable_bytes,
                "verdict": self.memory.verdict,
                "by_stage": [*self.memory.by_stage],
            },
            "recomputation": _dump(self.recomputation),
            "experts": _dump(self.experts),
            "time": _dump(self.rates) or dict.fromkeys(_TIME_KEYS),
            "bill": _dump(self.bill) or dict.fromkeys(CostEstimate.model_fields),
            "published": {name: _dump(item) for name, item in self.published.items()},
            "assumed": {name: _dump(item) for name, item in recipe.assumed.items()},
            "calibration": None,
            "missing": [_unknown(error) for error in self.missing],
            "limit": None if self.limit is None else _unknown(self.limit),
        }
        if (fitted := self.calibration) is not None:
            tree["calibration"] = {
                "fitted_on": fitted.fitted_on,
                "layouts": fitted.layouts,
                "median_error": fitted.time_error.held_out.median,
                "p90_error": fitted.time_error.held_out.p90,
            }
        if self.search:
            tree["search"] = self.search.as_json()
        if self.phases:
            tree["phases"] = [_dump(phase) for phase in self.phases]
        if self.children:
            tree["children"] = _dump(self.children)
        return tree


def _dump(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json")


def _unknown(error: RecipeError) -> dict[str, str]:
    return {"figure": error.path, "problem": error.problem, "remedy": error.remedy}


def _phase(step: StepPlan, useful: float | None) -> PlannedPhase:
    span, job, clock = step.recipe.span, step.job, step.recipe.clock
    # The parent of a run takes the steps before its first one.
    first = max(span.first_step, step.recipe.first_step)
    return PlannedPhase(
        name=span.name,
        first_token=clock.tokens_after(first),
        tokens=span.end_token - clock.tokens_after(first),
        steps=span.end_step - first,
        sequence_length=span.sequence_length,
        tokens_per_step=job.tokens_per_step,
        layout=job.layout,
        step_seconds=step.time.total if step.time else None,
        device_hours=None if useful is None else useful / HOUR * job.layout.ranks,
        peak_bytes=step.memory.peak_bytes,
        verdict=step.memory.verdict,
    )


def _compared(item: PublishedFigure, predicted: float | None) -> PublishedFigure:
    if not isinstance(item.value, int | float):
        return item
    deviation = None if predicted is None else predicted / item.value - 1
    return ComparedFigure(**item.model_dump(), predicted=predicted, deviation=deviation)


@dataclass(frozen=True, kw_only=True)
class LayoutsFound:
    """What was looked at, the plans of the best layouts, best first, and the published one's.

    ``published`` is null where the rules do not let that layout run there, by ``refusal``.
    """

    counts: LayoutSearch
    best: tuple[Plan, ...]
    published: Plan | None
    refusal: str
    why: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        counted = ("considered", "legal", "fitting", "seconds")
        published = self.published
        return {
            **{name: getattr(self.counts, name) for name in counted},
            "best": [_layout(plan) for plan in self.best],
            "paper": _layout(published) if published else {"refused": self.refusal},
            "why": [*self.why],
        }


def _layout(plan: Plan) -> dict[str, Any]:
    layout = plan.recipe.parallelism
    return {
        "layout": layout.model_dump(mode="json"),
        "text": describe(layout),
        "nodes": plan.recipe.cluster.nodes,
        "microbatches": plan.job.microbatches,
        "peak_bytes": plan.memory.peak_bytes,
        "verdict": plan.memory.verdict,
        "step_seconds": plan.time.total if plan.time else None,
        "parts": plan.time.parts() if plan.time else None,
        "days": plan.bill.days if plan.bill else None,
    }
