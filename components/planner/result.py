"""Plan result: memory, time and cost of a recipe on its cluster."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, PlainSerializer

from components.config.schema.cluster import Hardware
from components.config.schema.sections import Parallelism, PublishedFigure
from components.errors import RecipeError
from components.planner.accuracy import Accuracy, find_accuracy
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
from components.planner.search import LayoutSearch, describe_layout
from components.planner.software import Calibration, SoftwareModel
from components.planner.time import StepPlan

MISSING_FACTOR = 2.0  # of the range, if a number is missing and the error unknown
# If a step cannot be predicted, JSON has these keys with null.
_TIME_KEYS = ("step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


class PlannedPhase(BaseModel, frozen=True):
    """One phase of a run. ``device_hours`` are for its steps, without interruptions."""

    name: str
    first_token: int
    tokens: int
    steps: int
    sequence_length: int
    tokens_per_step: int
    layout: Annotated[Parallelism, PlainSerializer(lambda layout: layout.axis_degrees)]
    step_seconds: float | None
    device_hours: float | None
    peak_bytes: int
    verdict: Verdict


class ComparedFigure(PublishedFigure):
    """Published figure with the prediction, and its deviation from the published figure."""

    predicted: int | float | None
    deviation: float | None


@dataclass(frozen=True, kw_only=True)
class Plan(StepPlan):
    """Predictions for one recipe. ``run`` is None if ``time`` is.

    In a run with phases, job, memory and time describe the first phase, run and bill the whole
    run. ``missing`` lists every number that the plan lacks; ``is_guess`` is true if the time of
    a step needed one. ``calibration`` corrected ``software`` by measured runs of the cluster.
    ``limit`` is the queue limit that the run exceeds, with the nearest fix. ``search`` found
    the layout. ``children`` are the runs below this run.
    """

    steps: tuple[StepPlan, ...]
    hardware: Hardware
    software: SoftwareModel
    calibration: Calibration | None
    missing: tuple[RecipeError, ...]
    is_guess: bool
    limit: RecipeError | None
    run: RunTimeline | None
    search: "LayoutPlans | None" = None
    children: PlannedTree | None = None

    @property
    def cost_estimate(self) -> CostEstimate | None:
        return self.run.cost if self.run else None

    @property
    def largest_memory(self) -> Memory:
        """The memory of the phase with the highest peak."""
        return max(
            (step.memory for step in self.steps), key=lambda memory: memory.fullest_rank_bytes
        )

    @property
    def accuracy(self) -> Accuracy | None:
        """Errors of plans against measured steps of its class; None with a calibration."""
        if self.calibration is not None:
            return None
        return find_accuracy(self.recipe.cluster.name, self.job)

    @property
    def error_fraction(self) -> float:
        """Relative error of a step, which nine of ten measured steps stay below."""
        if self.calibration is not None:
            return self.calibration.time_error.held_out.p90
        assert self.accuracy is not None
        fraction = self.accuracy.p90_factor - 1
        return fraction * (MISSING_FACTOR if self.is_guess else 1.0)

    @cached_property
    def planned_time(self) -> PlannedTime | None:
        return rate_step(self, self.hardware, self.error_fraction)

    @cached_property
    def planned_recomputation(self) -> PlannedRecomputation | None:
        return price_recompute(self, self.hardware, self.software)

    @cached_property
    def planned_experts(self) -> PlannedExperts | None:
        return price_experts(self, self.hardware, self.software)

    @property
    def planned_phases(self) -> tuple[PlannedPhase, ...]:
        """Prediction of each phase. Empty for a run without phases."""
        works = self.run.work.phases if self.run else (None,) * len(self.steps)
        phases = (
            _phase(step, None if work is None else work.useful)
            for step, work in zip(self.steps, works, strict=True)
        )
        return tuple(phases) if self.steps[1:] else ()

    @property
    def published_figures(self) -> dict[str, ComparedFigure | PublishedFigure]:
        """The published figures. Numbers come with the plan's own prediction."""
        recipe, derived = self.recipe, self.recipe.derived_numbers
        rates, bill = self.planned_time, self.cost_estimate
        checkpoints = bill.checkpoints if bill else None
        # Keys as sources name them. Published rates count whole attention and recomputation.
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
        """Return the documented tree of ``output=json``, with null for unknown values."""
        recipe, cluster, layout = self.recipe, self.recipe.cluster, self.job.layout
        tree: dict[str, Any] = {
            "recipe": recipe.name,
            "cluster": cluster.name,
            "scale": recipe.scale.name,
            "layout": {
                **layout.axis_degrees,
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
                "verdict": self.memory.memory_verdict,
                "fit_probability": round(self.memory.fit_probability, 3),
                "by_stage": [*self.memory.by_stage],
            },
            "recomputation": _dump(self.planned_recomputation),
            "experts": _dump(self.planned_experts),
            "time": _dump(self.planned_time) or dict.fromkeys(_TIME_KEYS),
            "bill": _dump(self.cost_estimate) or dict.fromkeys(CostEstimate.model_fields),
            "published": {name: _dump(item) for name, item in self.published_figures.items()},
            "assumed": {name: _dump(item) for name, item in recipe.assumed.items()},
            "accuracy": _dump(self.accuracy),
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
        if self.planned_phases:
            tree["phases"] = [_dump(phase) for phase in self.planned_phases]
        if self.children:
            tree["children"] = _dump(self.children)
        return tree


def _dump(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json")


def _unknown(error: RecipeError) -> dict[str, str]:
    return {"figure": error.path, "problem": error.problem, "remedy": error.remedy}


def _phase(step: StepPlan, useful: float | None) -> PlannedPhase:
    span, job, clock = step.recipe.phase_span, step.job, step.recipe.token_clock
    # The parent of a run takes the steps before its first step.
    first = max(span.first_step, step.recipe.first_step)
    return PlannedPhase(
        name=span.name,
        first_token=clock.tokens_after(first),
        tokens=span.end_token - clock.tokens_after(first),
        steps=span.end_step - first,
        sequence_length=span.sequence_length,
        tokens_per_step=job.tokens_per_step,
        layout=job.layout,
        step_seconds=step.time.total_seconds if step.time else None,
        device_hours=None if useful is None else useful / HOUR * job.layout.num_ranks,
        peak_bytes=step.memory.peak_bytes,
        verdict=step.memory.memory_verdict,
    )


def _compared(item: PublishedFigure, predicted: float | None) -> PublishedFigure:
    if not isinstance(item.value, int | float):
        return item
    deviation = None if predicted is None else predicted / item.value - 1
    return ComparedFigure(**item.model_dump(), predicted=predicted, deviation=deviation)


@dataclass(frozen=True, kw_only=True)
class LayoutPlans:
    """Search result: counts, plans of the best layouts (best first) and the published one.

    ``published`` is None if the rules do not allow that layout, for the reason ``refusal``.
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
        "text": describe_layout(layout),
        "nodes": plan.recipe.cluster.nodes,
        "microbatches": plan.job.microbatches,
        "peak_bytes": plan.memory.peak_bytes,
        "verdict": plan.memory.memory_verdict,
        "step_seconds": plan.time.total_seconds if plan.time else None,
        "parts": plan.time.seconds_by_part() if plan.time else None,
        "days": plan.cost_estimate.days if plan.cost_estimate else None,
    }
