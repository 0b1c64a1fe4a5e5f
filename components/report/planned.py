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
from components.planner.result import planned_time
from components.planner.search_result import GIB
from components.report import numbers
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Grid, column_labels, row_labels, run_column

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
        (name, *label, *cells)
        for entry, plan, label in zip(entries, plans, row_labels(entries), strict=True)
        if plan is not None
        for name, cells in _quantities(entry, plan)
    ]
    # The same quantity of all runs stands together.
    order = list(dict.fromkeys(name for name, *_ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    heads = ("planned", "expected between", "measured", "measured against planned")
    names = ("quantity", *run_column(entries))
    return Grid(columns=(*names, *heads), rows=rows, text_columns=len(names))


def parts_grid(entries: Sequence[ReportEntry], plans: Sequence[Plan | None]) -> Grid:
    """Lay out what the planned step of each run is spent on."""
    parts = [plan.time.parts() if plan and plan.time else {} for plan in plans]
    names = dict.fromkeys(name for one in parts for name in one)
    rows = []
    for name in names:
        shares = (
            f"{one[name]:.3g} s ({one[name] / sum(one.values()):.1%})"
            if name in one
            else numbers.ABSENT
            for one in parts
        )
        rows.append((name.removesuffix("_seconds"), *shares))
    return Grid(columns=("part of the planned step", *column_labels(entries)), rows=rows)


def _quantities(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    if (time := planned_time(plan)) is not None:
        between = f"{time.step_seconds_low:.3g} and {time.step_seconds_high:.3g} s"
        steps = entry.run.journal.steps
        measured = median(step.seconds for step in steps) if steps else None
        yield "step, median", _cells(time.step_seconds, measured, "{:.3g} s".format, between)
        planned, reached = time.tokens_per_second, entry.outcome.tokens_per_second
        yield "tokens per second", _cells(planned, reached, numbers.measured)
    peak = plan.memory.ranks[0].peak / GIB
    taken = (entry.run.results or {}).get("peak_memory_bytes")
    # What tensors took: of a CPU the run knows only the whole process.
    of_cpu = str(entry.outcome.device).startswith("cpu")
    measured = None if taken is None or of_cpu else float(taken) / GIB
    yield "memory of the first rank", _cells(peak, measured, "{:.1f} GiB".format)
    if plan.bill is not None:  # of the whole run, so beside one that came to its end
        ended = entry.outcome.status == "finished"
        spent = entry.outcome.device_hours if ended else None
        cells = _cells(plan.bill.device_hours, spent, numbers.measured)
        yield "device-hours of the whole run", cells
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


def energy_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out energy, mean power and who counted them; what nothing counted is not guessed."""
    columns = [_energy_quantities(entry) for entry in entries]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Grid(columns=("", *column_labels(entries)), rows=rows)


def _energy_quantities(entry: ReportEntry) -> dict[str, str]:
    used = entry.run.journal.energy
    devices, hosts = used.get("devices", NOTHING), used.get("hosts", NOTHING)
    sources: Tree = (entry.run.results or {}).get("energy") or {}
    tokens, per_token = entry.outcome.tokens, numbers.ABSENT
    if devices.is_whole and tokens:
        per_token = f"{numbers.measured(devices.joules / tokens)} J"
    return {
        **_counted("devices", "device", devices),
        "joules per token, devices": per_token,
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


def _source(sources: Tree, name: str) -> str:
    return str(sources[name]["source"]) if name in sources else numbers.ABSENT
