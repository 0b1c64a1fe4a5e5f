"""What the planner says of a run beside what it measured, energy too.

Only where the cluster's profile has figures of its hardware: a run on any other machine, such
as the one at hand, has no plan.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from components.config.schema.recipe import check_recipe
from components.energy.counters import JOULES_PER_KWH, NOTHING, EnergyReading
from components.errors import RecipeError
from components.planner.plan import Plan, plan_recipe
from components.report import numbers
from components.report.outcome import ReportEntry, Tree
from components.report.plan_tables import GIB
from components.report.tables import Grid, TableRow, column_labels, row_labels, run_column

NOT_MEASURED, UNKNOWN = "not measured", "unknown"
Write = Callable[[float], str]
Cells = tuple[str, str, str, str]  # planned, expected between, measured, the one by the other


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
    rows = [
        (name, TableRow(cells=(name, *label, *cells)))
        for entry, plan, label in zip(entries, plans, row_labels(entries), strict=True)
        if plan is not None
        for name, cells in _quantities(entry, plan)
    ]
    # The same quantity of all runs stands together.
    order = {name: place for place, name in enumerate(dict.fromkeys(n for n, _ in rows))}
    rows.sort(key=lambda pair: order[pair[0]])
    heads = ("planned", "expected between", "measured", "measured against planned")
    names = ("quantity", *run_column(entries))
    return Grid(
        columns=(*names, *heads), rows=tuple(row for _, row in rows), text_columns=len(names)
    )


def parts_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Lay out what the planned step of each run is spent on."""
    parts = [plan.time.parts() if plan and plan.time else {} for plan in plans]
    names = dict.fromkeys(name for one in parts for name in one)
    rows = tuple(
        TableRow(cells=(name.removesuffix("_seconds"), *(_part(one, name) for one in parts)))
        for name in names
    )
    return Grid(columns=("part of the planned step", *column_labels(entries)), rows=rows)


def _part(parts: dict[str, float], name: str) -> str:
    if name not in parts:
        return numbers.ABSENT
    return f"{parts[name]:.3g} s ({parts[name] / sum(parts.values()):.1%})"


def _quantities(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    if plan.time is not None and plan.rates is not None:
        total, error = plan.time.total, plan.error_fraction
        between = f"{total / (1 + error):.3g} and {total * (1 + error):.3g} s"
        steps = entry.run.journal.steps
        measured = median(step.seconds for step in steps) if steps else None
        yield "step, median", _cells(total, measured, "{:.3g} s".format, between)
        planned = plan.rates.tokens_per_second
        yield (
            "tokens per second",
            _cells(planned, entry.outcome.tokens_per_second, numbers.measured),
        )
    peak = plan.memory.ranks[0].peak / GIB
    yield "memory of the first rank", _cells(peak, _peak_gib(entry), "{:.1f} GiB".format)
    if plan.bill is not None:
        hours = plan.bill.device_hours
        yield (
            "device-hours of the whole run",
            _cells(hours, _device_hours(entry), numbers.measured),
        )
    yield from _energy(entry, plan)


def _energy(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    """Set energy beside the plan's, which is of the rated power at all times."""
    devices = entry.run.journal.energy.get("devices", NOTHING)
    if plan.bill is not None:
        ended = entry.outcome.status == "finished" and devices.is_whole
        planned, measured = plan.bill.energy_kwh, devices.kwh if ended else None
        yield "energy of the devices, whole run", _cells(planned, measured, numbers.kwh)
    rated = plan.hardware.power_watts
    if devices.watts is not None and rated is not None:
        counted = rated * devices.counted_seconds / JOULES_PER_KWH
        yield "energy of the devices, as counted", _cells(counted, devices.kwh, numbers.kwh)
        yield "power of a device, mean", _cells(rated, devices.watts, numbers.watts)


def _cells(
    planned: float | None, measured: float | None, write: Write, between: str = ""
) -> Cells:
    said = UNKNOWN if planned is None else write(planned)
    if measured is None:
        return said, between, NOT_MEASURED, numbers.ABSENT
    deviation = numbers.ABSENT if planned is None else f"{measured / planned - 1:+.1%}"
    return said, between, write(measured), deviation


def _peak_gib(entry: ReportEntry) -> float | None:
    """Read what tensors took; of a CPU the run knows only the whole process."""
    peak = (entry.run.results or {}).get("peak_memory_bytes")
    if peak is None or str(entry.outcome.device).startswith("cpu"):
        return None
    return float(peak) / GIB


def _device_hours(entry: ReportEntry) -> float | None:
    """Give those of a run that came to its end: the plan's are of the whole."""
    return entry.outcome.device_hours if entry.outcome.status == "finished" else None


def energy_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out energy, mean power and who counted them; what nothing counted is not guessed."""
    columns = [_energy_quantities(entry) for entry in entries]
    rows = [
        TableRow(cells=(name, *(column[name] for column in columns))) for name in columns[0]
    ]
    return Grid(columns=("", *column_labels(entries)), rows=tuple(rows))


def _energy_quantities(entry: ReportEntry) -> dict[str, str]:
    used = entry.run.journal.energy
    devices, hosts = used.get("devices", NOTHING), used.get("hosts", NOTHING)
    sources: Tree = (entry.run.results or {}).get("energy") or {}
    return {
        **_counted("devices", "device", devices),
        "joules per token, devices": _per_token(devices, entry.outcome.tokens),
        "devices, counted by": _source(sources, "devices"),
        **_counted("hosts", "host", hosts),
        "hosts, counted by": _source(sources, "hosts"),
    }


def _counted(name: str, one: str, counted: EnergyReading) -> dict[str, str]:
    kwh, watts = counted.kwh, counted.watts
    part = f"{counted.fraction:.1%}" if counted.passed_seconds else numbers.ABSENT
    return {
        f"energy of the {name}": NOT_MEASURED if kwh is None else numbers.kwh(kwh),
        f"mean power of a {one}": numbers.ABSENT if watts is None else numbers.watts(watts),
        f"part of the {name}' time that was counted": part,
    }


def _per_token(devices: EnergyReading, tokens: int) -> str:
    if not devices.is_whole or not tokens:
        return numbers.ABSENT
    return f"{numbers.measured(devices.joules / tokens)} J"


def _source(sources: Tree, name: str) -> str:
    return str(sources[name]["source"]) if name in sources else numbers.ABSENT
