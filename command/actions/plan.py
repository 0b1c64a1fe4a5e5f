"""Print the bill before anything is spent: memory, time, cost, beside what is published."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.compose import compose_recipe, compose_searched
from command.outcome import ActionResult
from command.plan_text import mixture_lines, print_plan
from components.config.rules.check import warnings_of
from components.config.schema.recipe import Recipe
from components.planner.calibrated import Calibration
from components.planner.cost import BILL_KEYS
from components.planner.plan import Plan, plan_recipe
from components.report.pages import check_plotly
from components.report.plan_tables import picture_of
from components.report.search_table import search_tree
from components.terminal import say, tell

# Published names whose figure a plan predicts, and where the JSON object has it. The rates that
# papers print count the whole attention and what they recompute.
PREDICTED = {
    "memory_bytes": ("memory", "peak_bytes"),
    "step_seconds": ("time", "step_seconds"),
    "tokens_per_second_per_device": ("time", "tokens_per_second_per_device"),
    "tflops_per_device": ("time", "tflops_per_device_hardware"),
    "device_hours": ("bill", "device_hours"),
    "energy_kwh": ("bill", "energy_kwh"),
}


def run(arguments: Arguments) -> ActionResult:
    """Print tables and a picture, or one JSON object; ``file=FILE`` writes a page as well.

    With ``calibrate=[...]`` measured steps correct the planner instead.
    """
    if arguments.calibrate:
        from command.calibrate import calibrate

        return calibrate(arguments)
    found = compose_searched(arguments) if arguments.searches else None
    recipe = found.recipe if found else compose_recipe(arguments)
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    plan = plan_recipe(recipe)
    tree = as_json(recipe, plan)
    if found:
        tree["search"] = search_tree(found.search, recipe, found.published, found.refusal)
    page = _write_page(recipe, plan, tree, arguments)
    if arguments.output == "json":
        tell(json.dumps(tree))
    else:
        print_plan(tree, picture_of(plan), now=datetime.now().astimezone())
        for line in mixture_lines(recipe):
            tell(line)
    if page is not None:
        # With output=json, standard output is one object and nothing else.
        (say if arguments.output == "json" else tell)(str(page))
    return ActionResult()


def _write_page(
    recipe: Recipe, plan: Plan, tree: dict[str, Any], arguments: Arguments
) -> Path | None:
    if "file" not in arguments.folders:
        return None
    check_plotly("file")
    from components.report.plan_page import write_plan

    file = arguments.folders["file"]
    return write_plan(tree, picture_of(plan), why=recipe.why, destination=file)


def as_json(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Return the plan as ``output=json`` promises it; bytes, seconds, hours and days."""
    tree: dict[str, Any] = {
        "recipe": recipe.name,
        "cluster": recipe.cluster.name,
        "layout": _layout(recipe, plan),
        "memory": {
            "peak_bytes": round(plan.memory.peak),
            "device_bytes": plan.hardware.memory_bytes,
            "usable_bytes": plan.memory.usable_bytes,
            "verdict": plan.memory.verdict,
            "by_stage": [rank.parts() for rank in plan.memory.ranks],
        },
        "time": _time(plan),
        "bill": plan.bill.as_json() if plan.bill else dict.fromkeys(BILL_KEYS),
    }
    tree["published"] = {
        name: {**item.model_dump(mode="json"), **_compare(tree, name, item.value)}
        for name, item in recipe.published.items()
    }
    tree["assumed"] = {
        name: item.model_dump(mode="json") for name, item in recipe.assumed.items()
    }
    tree["calibration"] = _calibration(plan.calibration)
    tree["missing"] = [
        {"figure": item.path, "problem": item.problem, "remedy": item.remedy}
        for item in plan.missing
    ]
    return tree


_TIME = ("tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


def _layout(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    layout = plan.job.layout
    names = ("data", "tensor", "pipeline", "expert", "context", "zero")
    degrees = {name: getattr(layout, name) for name in names}
    return {
        **degrees,
        "nodes": recipe.cluster.nodes,
        "devices_per_node": recipe.cluster.devices_per_node,
        "microbatches": plan.job.microbatches,
        "layers_by_stage": list(layout.layers),
    }


def _time(plan: Plan) -> dict[str, Any]:
    if plan.time is None or plan.rates is None:
        return {"step_seconds": None, **dict.fromkeys(_TIME)}
    total, error = plan.time.total, plan.error_fraction
    return {
        "step_seconds": total,
        "step_seconds_low": total / (1 + error),
        "step_seconds_high": total * (1 + error),
        **plan.rates.as_json(),
        "parts": plan.time.parts(),
    }


def _calibration(found: Calibration | None) -> dict[str, Any] | None:
    """Say what of the cluster's own runs stands behind the plan."""
    if found is None:
        return None
    return {
        "fitted_on": found.fitted_on,
        "layouts": found.layouts,
        "median_error": found.time_error.held_out.median,
        "p90_error": found.time_error.held_out.p90,
    }


def _compare(tree: dict[str, Any], name: str, value: object) -> dict[str, float | None]:
    """Set the prediction beside a published number, as a fraction of it."""
    if name not in PREDICTED or not isinstance(value, int | float):
        return {}
    section, key = PREDICTED[name]
    predicted = tree[section][key]
    if predicted is None:
        return {"predicted": None, "deviation": None}
    return {"predicted": predicted, "deviation": predicted / value - 1}
