"""Figures beside each other: planned, published and assumed ones, and those of the run itself.

The report never mixes them, and a published figure stands beside the run's own only if it is
the same quantity, by name. Only where the cluster's profile has figures of its hardware is
there a plan: not of a run on the machine at hand.
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
from components.report.outcome import ReportEntry, Tree, flat
from components.report.tables import Grid, column_labels, labelled, together

NOT_MEASURED, UNKNOWN = "not measured", "unknown"
Number = float | None
Cells = tuple[str, str, str, str]  # planned, expected between, measured, the one by the other
# First match wins; a name's suffix is its unit.
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


def plan_of(recipe: Tree) -> Plan | None:
    """Plan a run's recipe; ``None`` where its cluster or this version of the planner cannot."""
    if recipe["cluster"].get("hardware", "none") == "none":
        return None
    try:
        return plan_recipe(check_recipe(dict(recipe)))
    except RecipeError:  # a run of another version must still have its report
        return None


def planned_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Lay out planned beside measured, a row a quantity and run; no rows without a plan."""
    run, runs = labelled(entries)
    rows = [
        (name, *label, *cells)
        for (entry, label), plan in zip(runs, plans, strict=True)
        if plan is not None
        for name, cells in _quantities(entry, plan)
    ]
    # The same quantity of all runs stands together.
    order = list(dict.fromkeys(name for name, *_ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    heads = ("planned", "expected between", "measured", "measured against planned")
    names = ("quantity", *run)
    columns = (*names, *heads)
    return Grid(columns=columns, rows=rows, text_columns=len(names), kind="figures")


def parts_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Lay out what the planned step of each run is spent on."""
    parts = [plan.time.parts() if plan and plan.time else {} for plan in plans]
    names = dict.fromkeys(name for one in parts for name in one)

    def share(one: Mapping[str, float], name: str) -> str:
        if name not in one:
            return numbers.ABSENT
        return f"{one[name]:.3g} s ({one[name] / sum(one.values()):.1%})"

    rows = [
        (name.removesuffix("_seconds"), *(share(one, name) for one in parts)) for name in names
    ]
    columns = ("part of the planned step", *column_labels(entries))
    return Grid(columns=columns, rows=rows, kind="figures")


def _quantities(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    if (time := plan.rates) is not None:
        between = f"{time.step_seconds_low:.3g} and {time.step_seconds_high:.3g} s"
        steps = entry.run.journal.steps
        measured = median(steps.column("seconds")) if steps else None
        said, _, *beside = _cells(time.step_seconds, measured, "s", ".3g")
        yield "step, median", (said, between, beside[0], beside[1])
        planned, reached = time.tokens_per_second, entry.outcome.tokens_per_second
        yield "tokens per second", _cells(planned, reached)
    peak = plan.memory.ranks[0].peak / GIB
    taken = (entry.run.results or {}).get("peak_memory_bytes")
    # What tensors took: of a CPU the run knows only the whole process.
    of_cpu = str(entry.outcome.device).startswith("cpu")
    measured = None if taken is None or of_cpu else float(taken) / GIB
    yield "memory of the first rank", _cells(peak, measured, "GiB", ".1f")
    if plan.bill is not None:  # of the whole run, so beside one that came to its end
        spent = entry.outcome.device_hours if entry.outcome.status == "finished" else None
        yield "device-hours of the whole run", _cells(plan.bill.device_hours, spent)
    yield from _energy(entry, plan)


def _energy(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    """Set energy beside the plan's, which is of the rated power at all times."""
    devices = entry.run.journal.energy.get("devices", NOTHING)
    if plan.bill is not None:
        ended = entry.outcome.status == "finished" and devices.is_whole
        planned, measured = plan.bill.energy_kwh, devices.kwh if ended else None
        yield "energy of the devices, whole run", _cells(planned, measured, "kWh")
        if (carbon := plan.bill.emissions.kg_co2e) is not None:
            emitted = _emissions(entry).kg_co2e if ended else None
            yield "CO2e of the devices' energy, whole run", _cells(carbon, emitted, "kg")
    rated = plan.hardware.device_watts
    if devices.watts is not None and rated is not None:
        counted = rated * devices.counted_seconds / JOULES_PER_KWH
        yield "energy of the devices, as counted", _cells(counted, devices.kwh, "kWh")
        yield "power of a device, mean", _cells(rated, devices.watts, "W")


def _cells(planned: Number, measured: Number, unit: str = "", form: str = "") -> Cells:
    said = _said(planned, unit, form, absent=UNKNOWN)
    if measured is None:
        return said, "", NOT_MEASURED, numbers.ABSENT
    deviation = numbers.ABSENT if planned is None else f"{measured / planned - 1:+.1%}"
    return said, "", _said(measured, unit, form), deviation


def _said(value: Number, unit: str, form: str = "", absent: str = numbers.ABSENT) -> str:
    if value is None:
        return absent
    return f"{format(value, form) if form else numbers.measured(value)} {unit}".rstrip()


def energy_quantities(entry: ReportEntry) -> dict[str, str]:
    """Say energy, mean power and who counted them; what nothing counted is not guessed."""
    sources: Tree = (entry.run.results or {}).get("energy") or {}
    found: dict[str, str] = {}
    for name, one in (("devices", "device"), ("hosts", "host")):
        counted = entry.run.journal.energy.get(name, NOTHING)
        kwh, watts, tokens = counted.kwh, counted.watts, entry.outcome.tokens
        part = counted.fraction if counted.passed_seconds else None
        found |= {
            f"energy of the {name}": _said(kwh, "kWh", absent=NOT_MEASURED),
            f"mean power of a {one}": _said(watts, "W"),
            f"part of the {name}' time that was counted": numbers.written(part, ".1%"),
        }
        if name == "devices":
            share = counted.joules / tokens if counted.is_whole and tokens else None
            found["joules per token, devices"] = _said(share, "J")
            emitted = _emissions(entry)
            found["energy of the devices with what the site adds"] = _said(
                emitted.site_kwh, "kWh", absent=UNKNOWN
            )
            found["CO2e of the devices' energy"] = _said(emitted.kg_co2e, "kg", absent=UNKNOWN)
            found["CO2e with what the site adds"] = _said(
                emitted.site_kg_co2e, "kg", absent=UNKNOWN
            )
        found[f"{name}, counted by"] = sources.get(name, {}).get("source", numbers.ABSENT)
    return found


def _emissions(entry: ReportEntry) -> Emissions:
    """Multiply what all devices took by what the profile says; unknown for earlier runs."""
    devices = entry.run.journal.energy.get("devices", NOTHING)
    known = entry.run.recipe["cluster"].get("electricity", {})
    return Emissions.of(
        devices.kwh if devices.is_whole else None,
        power_usage_effectiveness=known.get("power_usage_effectiveness"),
        grams_co2e_per_kwh=known.get("grams_co2e_per_kwh"),
    )


def is_miniature(entry: ReportEntry) -> bool:
    """Return whether the run is the recipe made small, so that no figure compares directly."""
    return isinstance(entry.run.recipe["scale"].get("shrink"), Mapping)


def published_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out every published figure beside what each run measured of the same quantity."""
    own = [dict.fromkeys(_published(entry.run.recipe["published"])) for entry in entries]
    measured = [_measured_quantities(entry) for entry in entries]
    rows = []
    for key in dict.fromkeys(key for figures in own for key in figures):
        name, value, unit, source = key
        cells = (
            _beside(name, quantities) if key in figures else numbers.ABSENT
            for figures, quantities in zip(own, measured, strict=True)
        )
        title = name.replace("_", " ").replace(".", ": ")
        rows.append((title, f"{value} {unit}".strip(), source, *cells))
    labels = zip(column_labels(entries), entries, strict=True)
    heads = (f"{label}, miniature" if is_miniature(one) else label for label, one in labels)
    columns = ("quantity", "published", "source", *heads)
    return Grid(columns=columns, rows=rows, kind="published")


def assumed_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out every assumed value with its reason and, of several runs, who assumes it."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        for name, leaf in _named(entry.run.recipe["assumed"], ""):
            key = (name, numbers.exact(leaf["value"]), str(leaf.get("reason", "")))
            holders.setdefault(key, []).append(entry.label)
    if len(entries) == 1:
        return Grid(columns=("key", "value", "reason"), rows=list(holders), kind="assumed")
    rows = [(*key, together(labels, entries)) for key, labels in holders.items()]
    return Grid(columns=("key", "value", "reason", "assumed by"), rows=rows, kind="assumed")


def _published(tree: Tree) -> Iterator[tuple[str, str, str, str]]:
    """Give quantity, value, unit and source of every figure, of a mapping of each part."""
    for name, leaf in _named(tree, ""):
        value = leaf["value"]
        parts = flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        for part, number in parts.items():
            source = str(leaf.get("source", ""))
            yield part, numbers.exact(number), str(leaf.get("unit", "")), source


def _named(tree: Tree, prefix: str) -> Iterator[tuple[str, Tree]]:
    """Walk to the mappings that carry a value; what lies above them are groups."""
    for key, node in tree.items():
        if "value" in node:
            yield f"{prefix}{key}", node
        else:
            yield from _named(node, f"{prefix}{key}.")


def _measured_quantities(entry: ReportEntry) -> dict[str, float]:
    """Collect what the run itself can state, under the names a recipe would publish it."""
    run, out = entry.run, entry.outcome
    named: dict[str, Any] = {
        **flat(run.derived),
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
    devices, steps = run.journal.energy.get("devices", NOTHING), run.journal.steps
    if devices.is_whole:
        named["energy_kwh"] = devices.kwh
        named["kg_co2e"] = _emissions(entry).kg_co2e
    if steps:
        named["step_seconds"] = median(steps.column("seconds"))
    measured = {name.replace(".", "_"): value for name, value in named.items()}
    return {name: one for name, one in measured.items() if isinstance(one, int | float)}


def _beside(name: str, quantities: Mapping[str, float]) -> str:
    """Find the quantity by its full name, else by its last part (``time.step_seconds``)."""
    for candidate in (name.replace(".", "_"), name.rpartition(".")[2]):
        if candidate in quantities:
            unit = next((unit for part, unit in _UNITS if part in candidate), "")
            return f"{numbers.measured(quantities[candidate])} {unit}".strip()
    return numbers.ABSENT
