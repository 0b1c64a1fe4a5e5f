"""Comparison tables: planned, published and assumed figures, and the run's own figures.

The report keeps the kinds apart. It compares a published figure with the run's own only if the
names of the quantities match. A plan requires a cluster profile with hardware figures, so runs
on the local machine have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from components.config.check import check_recipe
from components.energy.counters import JOULES_PER_KWH, NOTHING
from components.energy.emissions import Emissions
from components.errors import RecipeError
from components.planner.memory import GIB
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.report import numbers
from components.report.outcome import JsonTree, ReportEntry, flatten_tree
from components.report.tables import Grid, build_run_column, column_labels, name_runs

NOT_MEASURED, UNKNOWN = "not measured", "unknown"
OptionalNumber = float | None
# Planned, expected between, measured, measured against planned.
QuantityCells = tuple[str, str, str, str]
# Unit by part of a quantity's name. The first match wins.
_UNITS = (
    ("tokens_per_second", "tokens/s"),
    ("flops_per_second", "FLOP/s"),
    ("flops_per_token", "FLOP"),
    ("_seconds", "s"),
    ("_hours", "h"),
    ("_kwh", "kWh"),
    ("kg_co2e", "kg"),
    ("days", "d"),
    ("_bytes", "B"),
    ("loss", "nats/token"),
    ("parameters", "parameters"),
    ("tokens", "tokens"),
)


def plan_of(recipe: JsonTree) -> Plan | None:
    """Plan a run's recipe; None if its cluster or this planner version does not allow it."""
    if recipe["cluster"].get("hardware", "none") == "none":
        return None
    try:
        return plan_recipe(check_recipe(dict(recipe)))
    except RecipeError:  # a run of another version still needs its report
        return None


def planned_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Return planned and measured values, a row per quantity and run; empty without a plan."""
    run, runs = build_run_column(entries)
    rows = [
        (name, *label, *cells)
        for (entry, label), plan in zip(runs, plans, strict=True)
        if plan is not None
        for name, cells in _quantities(entry, plan)
    ]
    # Keep the rows of one quantity together.
    order = list(dict.fromkeys(name for name, *_ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    heads = ("planned", "expected between", "measured", "measured against planned")
    names = ("quantity", *run)
    columns = (*names, *heads)
    return Grid(columns=columns, rows=rows, text_columns=len(names), kind="figures")


def parts_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Return the table of the parts of each run's planned step."""
    parts = [plan.time.seconds_by_part() if plan and plan.time else {} for plan in plans]
    names = dict.fromkeys(name for seconds in parts for name in seconds)

    def format_share(seconds: Mapping[str, float], name: str) -> str:
        if name not in seconds:
            return numbers.ABSENT
        return f"{seconds[name]:.3g} s ({seconds[name] / sum(seconds.values()):.1%})"

    rows = [
        (name.removesuffix("_seconds"), *(format_share(seconds, name) for seconds in parts))
        for name in names
    ]
    columns = ("part of the planned step", *column_labels(entries))
    return Grid(columns=columns, rows=rows, kind="figures")


def _quantities(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, QuantityCells]]:
    if (time := plan.planned_time) is not None:
        between = f"{time.step_seconds_low:.3g} and {time.step_seconds_high:.3g} s"
        steps = entry.run.history.steps
        measured = median(steps.copy_column("seconds")) if steps else None
        planned_text, _, *compared = _cells(time.step_seconds, measured, "s", ".3g")
        yield "step, median", (planned_text, between, compared[0], compared[1])
        planned, reached = time.tokens_per_second, entry.outcome.tokens_per_second
        yield "tokens per second", _cells(planned, reached)
    peak = plan.memory.ranks[0].peak_bytes / GIB
    peak_bytes = (entry.run.results or {}).get("peak_memory_bytes")
    # The peak of tensors. On a CPU the run only knows the peak of its process.
    of_cpu = str(entry.outcome.device).startswith("cpu")
    measured = None if peak_bytes is None or of_cpu else float(peak_bytes) / GIB
    yield "memory of the first rank", _cells(peak, measured, "GiB", ".1f")
    if plan.cost_estimate is not None:  # covers the whole run, so only for a finished run
        spent = entry.outcome.device_hours if entry.outcome.status == "finished" else None
        yield "device-hours of the whole run", _cells(plan.cost_estimate.device_hours, spent)
    yield from _energy(entry, plan)


def _energy(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, QuantityCells]]:
    """Compare energy with the plan, which assumes the rated power at all times."""
    devices = entry.run.history.energy.get("devices", NOTHING)
    if plan.cost_estimate is not None:
        ended = entry.outcome.status == "finished" and devices.is_whole
        planned, measured = plan.cost_estimate.energy_kwh, devices.energy_kwh if ended else None
        yield "energy of the devices, whole run", _cells(planned, measured, "kWh")
        if (carbon := plan.cost_estimate.emissions.kg_co2e) is not None:
            emitted = _emissions(entry).kg_co2e if ended else None
            yield "CO2e of the devices' energy, whole run", _cells(carbon, emitted, "kg")
    rated = plan.hardware.device_watts
    if devices.mean_watts is not None and rated is not None:
        counted = rated * devices.counted_seconds / JOULES_PER_KWH
        yield "energy of the devices, as counted", _cells(counted, devices.energy_kwh, "kWh")
        yield "mean power per device", _cells(rated, devices.mean_watts, "W")


def _cells(
    planned: OptionalNumber, measured: OptionalNumber, unit: str = "", form: str = ""
) -> QuantityCells:
    planned_text = _format_value(planned, unit, form, absent=UNKNOWN)
    if measured is None:
        return planned_text, "", NOT_MEASURED, numbers.ABSENT
    deviation = numbers.ABSENT if planned is None else f"{measured / planned - 1:+.1%}"
    return planned_text, "", _format_value(measured, unit, form), deviation


def _format_value(
    value: OptionalNumber, unit: str, form: str = "", absent: str = numbers.ABSENT
) -> str:
    if value is None:
        return absent
    return f"{format(value, form) if form else numbers.format_measured(value)} {unit}".rstrip()


def energy_quantities(entry: ReportEntry) -> dict[str, str]:
    """Return energy, mean power and counter of a run. Missing counts are not estimated."""
    sources: JsonTree = (entry.run.results or {}).get("energy") or {}
    rows: dict[str, str] = {}
    for name, unit in (("devices", "device"), ("hosts", "host")):
        counted = entry.run.history.energy.get(name, NOTHING)
        kwh, watts, tokens = counted.energy_kwh, counted.mean_watts, entry.outcome.tokens
        part = counted.counted_fraction if counted.passed_seconds else None
        rows |= {
            f"energy of the {name}": _format_value(kwh, "kWh", absent=NOT_MEASURED),
            f"mean power of a {unit}": _format_value(watts, "W"),
            f"measured share of the {name}' time": numbers.format_value(part, ".1%"),
        }
        if name == "devices":
            share = counted.joules / tokens if counted.is_whole and tokens else None
            rows["joules per token, devices"] = _format_value(share, "J")
            emitted = _emissions(entry)
            for title, amount, unit in (
                ("energy of the devices with site overhead", emitted.site_kwh, "kWh"),
                ("CO2e of the devices' energy", emitted.kg_co2e, "kg"),
                ("CO2e with site overhead", emitted.site_kg_co2e, "kg"),
            ):
                rows[title] = _format_value(amount, unit, absent=UNKNOWN)
        rows[f"{name}, measured by"] = sources.get(name, {}).get("source", numbers.ABSENT)
    return rows


def _emissions(entry: ReportEntry) -> Emissions:
    """Return the emissions of all devices by the profile's figures. Earlier runs have none."""
    devices = entry.run.history.energy.get("devices", NOTHING)
    known = entry.run.recipe["cluster"].get("electricity", {})
    return Emissions.from_energy(
        devices.energy_kwh if devices.is_whole else None,
        power_usage_effectiveness=known.get("power_usage_effectiveness"),
        grams_co2e_per_kwh=known.get("grams_co2e_per_kwh"),
    )


def is_miniature(entry: ReportEntry) -> bool:
    """Return whether a run is scaled down, so that its figures are not directly comparable."""
    return isinstance(entry.run.recipe["scale"].get("shrink"), Mapping)


def published_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of published figures with each run's own measurement."""
    own = [dict.fromkeys(_published(entry.run.recipe["published"])) for entry in entries]
    measured = [_measured_quantities(entry) for entry in entries]
    rows = []
    for key in dict.fromkeys(key for figures in own for key in figures):
        name, value, unit, source = key
        cells = (
            _format_figure(name, quantities) if key in figures else numbers.ABSENT
            for figures, quantities in zip(own, measured, strict=True)
        )
        title = name.replace("_", " ").replace(".", ": ")
        rows.append((title, f"{value} {unit}".strip(), source, *cells))
    labels = zip(column_labels(entries), entries, strict=True)
    heads = (f"{label}, miniature" if is_miniature(entry) else label for label, entry in labels)
    columns = ("quantity", "published", "source", *heads)
    return Grid(columns=columns, rows=rows, kind="published")


def assumed_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of assumed values, their reasons and, if several, their runs."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        for name, leaf in _named(entry.run.recipe["assumed"], ""):
            key = (name, numbers.format_exact(leaf["value"]), str(leaf.get("reason", "")))
            holders.setdefault(key, []).append(entry.label)
    if len(entries) == 1:
        return Grid(columns=("key", "value", "reason"), rows=list(holders), kind="assumed")
    rows = [(*key, name_runs(labels, entries)) for key, labels in holders.items()]
    return Grid(columns=("key", "value", "reason", "assumed by"), rows=rows, kind="assumed")


def _published(tree: JsonTree) -> Iterator[tuple[str, str, str, str]]:
    """Yield quantity, value, unit and source of each figure, or of each part of a mapping."""
    for name, leaf in _named(tree, ""):
        value = leaf["value"]
        parts = flatten_tree(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        for part, number in parts.items():
            source = str(leaf.get("source", ""))
            yield part, numbers.format_exact(number), str(leaf.get("unit", "")), source


def _named(tree: JsonTree, prefix: str) -> Iterator[tuple[str, JsonTree]]:
    """Yield the mappings that have a value, with dotted names; those above are groups."""
    for key, node in tree.items():
        if "value" in node:
            yield f"{prefix}{key}", node
        else:
            yield from _named(node, f"{prefix}{key}.")


def _measured_quantities(entry: ReportEntry) -> dict[str, float]:
    """Return the run's own quantities, by the names under which recipes publish them."""
    run, out = entry.run, entry.outcome
    named: dict[str, Any] = {
        **flatten_tree(run.derived),
        "parameters": run.derived["parameters"].get("total"),
        "active_parameters": run.derived["parameters"].get("active"),
        "devices": run.derived["ranks"],
        "steps": out.steps,
        "tokens": out.tokens,
        "total_tokens": out.tokens,
        "held_out_loss": out.held_out.final,
        "training_loss": out.training_loss,
        "device_hours": out.device_hours,
        "days": out.seconds and out.seconds / 86_400,
        "tokens_per_second": out.tokens_per_second,
        "tokens_per_second_per_device": out.tokens_per_second_per_device,
        **{f"flops_per_second.{c}": rate for c, rate in out.flops_per_second.items()},
    }
    devices, steps = run.history.energy.get("devices", NOTHING), run.history.steps
    if devices.is_whole:
        named["energy_kwh"] = devices.energy_kwh
        named["kg_co2e"] = _emissions(entry).kg_co2e
    if steps:
        named["step_seconds"] = median(steps.copy_column("seconds"))
    measured = {name.replace(".", "_"): value for name, value in named.items()}
    return {name: value for name, value in measured.items() if isinstance(value, int | float)}


def _format_figure(name: str, quantities: Mapping[str, float]) -> str:
    """Format the quantity with this name, or with its last part (``time.step_seconds``)."""
    for candidate in (name.replace(".", "_"), name.rpartition(".")[2]):
        if candidate in quantities:
            unit = next((unit for part, unit in _UNITS if part in candidate), "")
            return f"{numbers.format_measured(quantities[candidate])} {unit}".strip()
    return numbers.ABSENT
