"""Plan tables: memory, time and cost as text, and the picture of nodes and pipeline.

The terminal and the page set the same cells, so that they cannot say different things.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta
from typing import Any

from components.planner.job import ParallelLayout
from components.planner.placement import Node, meaning, nodes_of_first_copy
from components.planner.plan import Plan
from components.planner.timeline import Timeline, timeline_of

_GROUPED = 1_000


def significant(value: float, digits: int = 4) -> str:
    """Write so many digits: 1,110,000, 46.5 or 0.406; an exponent only where it is tiny."""
    number = float(f"{value:.{digits}g}")
    return f"{number:,.0f}" if abs(number) >= _GROUPED else f"{number:.{digits}g}"


COST_ROWS = (
    ("useful_days", "steps"),
    ("checkpoint_days", "checkpoints, which stop the run"),
    ("evaluation_days", "evaluations"),
    ("failure_days", "failures"),
    ("chain_days", "starting jobs and handing over"),
)


def bill_rows(bill: Mapping[str, Any], now: datetime | None) -> list[tuple[str, str]]:
    """Return label and text of each row; ``bill`` is that of the JSON object."""
    rows = [("days, without waiting", f"{bill['days']:.3g}{_jobs(bill)}")]
    for key, label in COST_ROWS:
        if bill[key] is not None:
            rows.append((f"  {label}", f"{bill[key]:.3g}{_count(bill, key)}"))
    if (saving := _saving(bill)) is not None:
        rows.append(("checkpoints every", saving))
    if bill["waiting_days"]:
        rows.append(("waiting in queues", f"{bill['waiting_days']:.3g} days"))
    if now is not None:
        rows.append(("finish if it starts now", _end(now, bill["days"] + bill["waiting_days"])))
    return rows


def _end(now: datetime, days: float) -> str:
    """Name the minute in which it ends, if it does before the calendar."""
    try:
        return f"{now + timedelta(days=days):%Y-%m-%d %H:%M}"
    except OverflowError:
        return f"after the year {MAXYEAR}"


def _jobs(bill: Mapping[str, Any]) -> str:
    return f", {bill['jobs']:,} jobs of {bill['queue']}" if bill["jobs"] else ""


def _count(bill: Mapping[str, Any], key: str) -> str:
    """Say how many there are of what a part counts."""
    if key == "useful_days":
        return f", {bill['steps']:,} steps"
    if key == "failure_days":
        return f", {bill['failures']['count']:.3g} failures"
    name = {"checkpoint_days": "checkpoints", "evaluation_days": "evaluations"}.get(key)
    return f", {bill[name]['count']:,} of them" if name else ""


def _saving(bill: Mapping[str, Any]) -> str | None:
    saving = bill["checkpoints"]
    size = significant(saving["bytes"] / 1e9)
    own = f"{saving['interval_seconds'] / 60:.3g} min, {size} GB each"
    if saving["best_interval_seconds"] is None:
        return own
    best = f"{saving['best_interval_seconds'] / 60:.3g} min"
    return f"{own}; best {best}, checkpoint.every_tokens={saving['best_every_tokens']:_}"


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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The nodes of the first copy of the model, and a timeline where there is a pipeline."""

    layout: ParallelLayout
    nodes: tuple[Node, ...]
    timeline: Timeline | None

    @property
    def heading(self) -> str:
        """Say how many copies there are, how large, where the first lies, what letters mean."""
        layout = self.layout
        ranks, nodes = layout.ranks // layout.data, layout.ranks // layout.devices_per_node
        size = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
        where = f"{len(self.nodes):,} of {nodes:,} nodes"
        if layout.data == 1:
            said = f"one copy of the model, of {size} on {where}"
        else:
            said = (
                f"{layout.data:,} copies of the model, each of {size}; the first is on {where}"
            )
        return "; ".join(filter(None, (said, meaning(layout))))


def picture_of(plan: Plan) -> Picture:
    """Draw a plan; a step that could not be predicted has no timeline."""
    timeline = None
    if plan.time is not None and plan.job.layout.pipeline > 1:
        timeline = timeline_of(plan.job, plan.hardware, plan.software.speed)
    layout = plan.job.layout
    return Picture(layout=layout, nodes=nodes_of_first_copy(layout), timeline=timeline)
