"""What a search found: for ``output=json``, and as the table that text and page share."""

from collections.abc import Mapping
from typing import Any

from components.config.schema.recipe import Recipe, check_recipe
from components.config.schema.sections import Parallelism
from components.planner.comparison import AXES, describe, reasons, reasons_alone
from components.planner.plan import Plan, plan_recipe
from components.planner.search import LayoutSearch
from components.report.plan_tables import GIB, Sheet

Tree = Mapping[str, Any]


def search_tree(
    search: LayoutSearch, recipe: Recipe, published: Recipe | None, refusal: str
) -> dict[str, Any]:
    """Return the best layouts, each planned whole, beside the published one, and why.

    ``refusal`` says why the rules do not let the published layout run there.
    """
    plans = [_planned(recipe, choice.degrees) for choice in search.best]
    first, paper = plans[0][1], plan_recipe(published) if published else None
    return {
        "considered": search.considered,
        "legal": search.legal,
        "fitting": search.fitting,
        "seconds": search.seconds,
        "best": [_entry(one, plan) for one, plan in plans],
        "paper": _entry(published, paper) if published and paper else {"refused": refusal},
        "why": reasons(first, paper) if paper else reasons_alone(first, refusal),
    }


def _planned(recipe: Recipe, degrees: Parallelism) -> tuple[Recipe, Plan]:
    tree = recipe.model_dump(mode="json")
    tree["parallelism"] = degrees.model_dump(mode="json")
    other = check_recipe(tree)
    return other, plan_recipe(other)


def _entry(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    return {
        "layout": recipe.parallelism.model_dump(mode="json"),
        "text": describe(recipe.parallelism),
        "nodes": recipe.cluster.nodes,
        "microbatches": plan.job.microbatches,
        "peak_bytes": round(plan.memory.peak),
        "verdict": plan.memory.verdict,
        "step_seconds": plan.time.total if plan.time else None,
        "parts": plan.time.parts() if plan.time else None,
        "days": plan.bill.days if plan.bill else None,
    }


def search_sheet(tree: Tree) -> Sheet:
    """Lay out the best layouts and the published one: what they hold, how long they take."""
    search = tree["search"]
    rows = [_row(str(place), entry) for place, entry in enumerate(search["best"], 1)]
    if "text" in search["paper"]:
        rows.append(_row("paper", search["paper"]))
    title = (
        f"layouts: {search['considered']:,} considered, {search['legal']:,} legal, "
        f"{search['fitting']:,} fit {search['best'][0]['nodes']:,} nodes"
    )
    settings = ("ZeRO", "sequences", "schedule", "recomputes")
    columns = ("", *AXES, *settings, "GiB", "", "step, s", "days")
    return Sheet(title=title, columns=columns, rows=tuple(rows))


def _row(place: str, entry: Tree) -> tuple[str, ...]:
    step, days, layout = entry["step_seconds"], entry["days"], entry["layout"]
    again, stages = layout["recompute"], layout["stages_per_rank"]
    schedule = f"{layout['schedule']} x {stages}" if stages > 1 else layout["schedule"]
    return (
        place,
        *(str(layout[axis]) for axis in AXES),
        str(layout["zero"]),
        str(layout["microbatch_sequences"]),
        schedule if layout["pipeline"] > 1 else "",
        again if isinstance(again, str) else "+".join(again),
        f"{entry['peak_bytes'] / GIB:.1f}",
        entry["verdict"].replace("_", " "),
        "" if step is None else f"{step:.4g}",
        "" if days is None else f"{days:.3g}",
    )
