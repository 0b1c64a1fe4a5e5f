"""The plan as tables of text, from the object that ``output=json`` prints.

The terminal and the page set the same cells, so that they cannot say different things.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from components.planner.bill_rows import bill_rows
from components.planner.digits import significant

Tree = Mapping[str, Any]

GIB = 2**30
PARTS = (
    *("weights", "gradients", "master", "optimizer"),
    *("casts", "activations", "loss", "buffers"),
)
_RATES = (
    ("mfu_full", "MFU, full attention"),
    ("mfu_causal", "MFU, causal attention"),
    ("hfu", "HFU, full attention, recomputation counted"),
)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table: what it is about, the head of each column, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def memory_sheet(tree: Tree) -> Sheet:
    """Lay out the parts of each pipeline rank's memory, in GiB."""
    memory = tree["memory"]
    limit = memory["usable_bytes"] / GIB
    rows = []
    for number, stage in enumerate(memory["by_stage"]):
        parts = (f"{stage[f'{part}_bytes'] / GIB:.2f}" for part in PARTS)
        rows.append((str(number), *parts, f"{stage['peak_bytes'] / GIB:.2f}"))
    title = f"memory, GiB a device of {limit:.1f} usable: {memory['verdict']}"
    return Sheet(title=title, columns=("stage", *PARTS, "peak"), rows=tuple(rows))


def time_sheet(tree: Tree, *, now: datetime | None) -> Sheet:
    """Lay out the step, its parts and rates, and what the run costs; ``now`` dates its end."""
    layout = tree["layout"]
    degrees = " x ".join(
        f"{name} {layout[name]}" for name in ("data", "expert", "context", "tensor", "pipeline")
    )
    rows = [("layout", f"{layout['nodes']:,} nodes: {degrees}")]
    if tree["time"]["step_seconds"] is None:
        rows.append(("step", "not predicted: see what is missing"))
    else:
        rows += [*_step_rows(tree["time"]), *_calibration_rows(tree["calibration"])]
        rows += _bill_rows(tree["bill"], now)
    return Sheet(title="", columns=("time and bill", ""), rows=tuple(rows))


def _step_rows(time: Tree) -> list[tuple[str, str]]:
    low, high = time["step_seconds_low"], time["step_seconds_high"]
    tokens = time["tokens_per_second_per_device"]
    return [
        ("step", f"{time['step_seconds']:.3g} s ({low:.3g} to {high:.3g})"),
        *(
            (f"  {name.removesuffix('_seconds')}", f"{seconds:.3g} s")
            for name, seconds in time["parts"].items()
        ),
        ("tokens a second", f"{time['tokens_per_second']:,.0f}, {tokens:,.1f} a device"),
        *((meaning, f"{time[key]:.1%}") for key, meaning in _RATES),
    ]


def _calibration_rows(found: Tree | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    said = f"{found['layouts']} layouts, {found['fitted_on']}; others are off by a median of "
    return [("  calibrated on", f"{said}{found['median_error']:.1%}")]


def _bill_rows(costs: Tree, now: datetime | None) -> list[tuple[str, str]]:
    rows = [
        ("device-hours", significant(costs["device_hours"])),
        (f"bill, {costs['site_unit']}", significant(costs["site_units"])),
    ]
    if costs["energy_kwh"] is not None:
        rows.append(("energy of the devices", f"{significant(costs['energy_kwh'])} kWh"))
    return [*rows, *bill_rows(costs, now)]


def published_sheet(tree: Tree) -> Sheet:
    """Lay out every published figure beside the prediction of the same quantity."""
    rows = []
    for name, item in tree["published"].items():
        predicted, deviation = item.get("predicted"), item.get("deviation")
        rows.append((
            name,
            f"{item['value']:,}" if isinstance(item["value"], int) else str(item["value"]),
            item["unit"],
            "" if predicted is None else significant(predicted),
            "" if deviation is None else f"{deviation:+.1%}",
        ))
    columns = ("published", "value", "unit", "predicted", "deviation")
    return Sheet(title="", columns=columns, rows=tuple(rows))


def assumed_sheet(tree: Tree) -> Sheet:
    """Lay out what the recipe assumes because no source says it."""
    rows = tuple(
        (name, str(item["value"]), item["reason"]) for name, item in tree["assumed"].items()
    )
    return Sheet(title="", columns=("assumed", "value", "reason"), rows=rows)


def missing_sheet(tree: Tree) -> Sheet:
    """Lay out the figures of the machine that nobody has measured."""
    rows = tuple((item["figure"], item["problem"], item["remedy"]) for item in tree["missing"])
    return Sheet(title="", columns=("missing", "what was done", "the way out"), rows=rows)
