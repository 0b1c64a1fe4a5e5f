"""Print the bill before anything is spent: memory, time, cost, beside what is published."""

import json
import sys
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from command.arguments import Arguments
from command.bill_rows import bill_rows
from command.compose import compose_recipe
from command.outcome import Outcome
from components.planner.bill import BILL_KEYS
from components.planner.plan import Plan, plan_recipe
from components.spec.recipe import Recipe
from components.spec.warnings import warnings_of

GIB = 2**30
BAR = 24
PARTS = (
    *("weights", "gradients", "master", "optimizer"),
    *("casts", "activations", "loss", "buffers"),
)
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


def run(arguments: Arguments) -> Outcome:
    """Print tables, or one JSON object."""
    recipe = compose_recipe(arguments)
    for warning in warnings_of(recipe):
        sys.stderr.write(f"warning: {warning}\n")
    plan = plan_recipe(recipe)
    tree = as_json(recipe, plan)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(tree) + "\n")
    else:
        _print(tree)
    return Outcome()


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


def _compare(tree: dict[str, Any], name: str, value: object) -> dict[str, float | None]:
    """Set the prediction beside a published number, as a fraction of it."""
    if name not in PREDICTED or not isinstance(value, int | float):
        return {}
    section, key = PREDICTED[name]
    predicted = tree[section][key]
    if predicted is None:
        return {"predicted": None, "deviation": None}
    return {"predicted": predicted, "deviation": predicted / value - 1}


def _print(tree: dict[str, Any]) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 130)
    for table in (_memory_table(tree), _time_table(tree), _published_table(tree)):
        console.print(table)
        console.print()
    for name, item in tree["assumed"].items():
        console.print(f"assumed, never published: {name}: {item['reason']}", markup=False)
    for item in tree["missing"]:
        text = f"missing: {item['figure']}: {item['problem']}; {item['remedy']}"
        console.print(text, markup=False)


def _memory_table(tree: dict[str, Any]) -> Table:
    memory = tree["memory"]
    limit = memory["usable_bytes"]
    title = f"memory, GiB a device of {limit / GIB:.1f} usable: {memory['verdict']}"
    table = Table("stage", *PARTS, "peak", "", box=None, title=title, title_justify="left")
    for number, stage in enumerate(memory["by_stage"]):
        parts = [f"{stage[f'{part}_bytes'] / GIB:.2f}" for part in PARTS]
        peak = stage["peak_bytes"]
        filled = min(round(BAR * peak / limit), BAR)
        bar = "█" * filled + "·" * (BAR - filled) + ("!" if peak > limit else "")
        table.add_row(str(number), *parts, f"{peak / GIB:.2f}", bar)
    return table


def _time_table(tree: dict[str, Any]) -> Table:
    table = Table("time and bill", "", box=None)
    time, costs, layout = tree["time"], tree["bill"], tree["layout"]
    degrees = " x ".join(
        f"{name} {layout[name]}" for name in ("data", "expert", "context", "tensor", "pipeline")
    )
    table.add_row("layout", f"{layout['nodes']:,} nodes: {degrees}")
    if time["step_seconds"] is None:
        table.add_row("step", "not predicted: see what is missing")
        return table
    low, high = time["step_seconds_low"], time["step_seconds_high"]
    table.add_row("step", f"{time['step_seconds']:.3g} s ({low:.3g} to {high:.3g})")
    for name, seconds in time["parts"].items():
        table.add_row(f"  {name.removesuffix('_seconds')}", f"{seconds:.3g} s")
    tokens = time["tokens_per_second_per_device"]
    table.add_row(
        "tokens a second", f"{time['tokens_per_second']:,.0f}, {tokens:,.1f} a device"
    )
    for key, meaning in (
        ("mfu_full", "MFU, full attention"),
        ("mfu_causal", "MFU, causal attention"),
        ("hfu", "HFU, full attention, recomputation counted"),
    ):
        table.add_row(meaning, f"{time[key]:.1%}")
    table.add_row("device-hours", f"{costs['device_hours']:,.4g}")
    table.add_row(f"bill, {costs['site_unit']}", f"{costs['site_units']:,.4g}")
    if costs["energy_kwh"] is not None:
        table.add_row("energy of the devices", f"{costs['energy_kwh']:,.4g} kWh")
    for row in bill_rows(costs, datetime.now().astimezone()):
        table.add_row(*row)
    return table


def _published_table(tree: dict[str, Any]) -> Table:
    table = Table("published", "value", "unit", "predicted", "deviation", box=None)
    for name, item in tree["published"].items():
        predicted, deviation = item.get("predicted"), item.get("deviation")
        table.add_row(
            name,
            f"{item['value']:,}" if isinstance(item["value"], int) else str(item["value"]),
            item["unit"],
            "" if predicted is None else f"{predicted:,.4g}",
            "" if deviation is None else f"{deviation:+.1%}",
        )
    return table
