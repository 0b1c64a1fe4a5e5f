"""The step that the planner predicts beside the one that the run measured.

Only where the cluster's profile has figures of its hardware: a run on any other machine, such
as the one at hand, has no plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.report import numbers
from components.report.outcome import Entry
from components.report.run_folder import Tree
from components.report.tables import Grid, Row, column_labels
from components.spec.recipe import check_recipe


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """Predicted seconds of a step, and the two between which it should lie."""

    seconds: float
    low: float
    high: float


def planned_step(recipe: Tree) -> PlannedStep | None:
    """Plan a run's recipe; ``None`` where its cluster or this version of the planner cannot."""
    if recipe["cluster"].get("hardware", "none") == "none":
        return None
    try:
        plan = plan_recipe(check_recipe(dict(recipe)))
    except RecipeError:  # a run of another version must still have its report
        return None
    if plan.time is None:
        return None
    total, error = plan.time.total, plan.error_fraction
    return PlannedStep(seconds=total, low=total / (1 + error), high=total * (1 + error))


def planned_grid(entries: Sequence[Entry]) -> Grid:
    """Lay out planned and measured seconds of a step; no rows where no run has a plan."""
    plans = [planned_step(entry.run.recipe) for entry in entries]
    if not any(plans):
        return Grid(columns=(), rows=())
    measured = [_median_seconds(entry) for entry in entries]
    columns = [_cells(plan, seconds) for plan, seconds in zip(plans, measured, strict=True)]
    rows = tuple(
        Row(cells=(title, *(column[title] for column in columns))) for title in columns[0]
    )
    return Grid(columns=("", *column_labels(entries)), rows=rows)


def _cells(plan: PlannedStep | None, measured: float | None) -> dict[str, str]:
    return {
        "planned step": _seconds(plan.seconds if plan else None),
        "expected between": f"{plan.low:.3g} and {plan.high:.3g} s" if plan else numbers.ABSENT,
        "measured step, median": _seconds(measured),
        "measured against planned": f"{measured / plan.seconds - 1:+.1%}"
        if plan is not None and measured is not None
        else numbers.ABSENT,
    }


def _seconds(value: float | None) -> str:
    return numbers.ABSENT if value is None else f"{value:.3g} s"


def _median_seconds(entry: Entry) -> float | None:
    steps = entry.run.journal.steps
    return median(step.seconds for step in steps) if steps else None
