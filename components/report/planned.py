"""What the planner says of a run beside what it measured, energy too.

Only where the cluster's profile has figures of its hardware: a run on any other machine, such
as the one at hand, has no plan.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from components.config.schema.recipe import check_recipe
from components.energy.counters import JOULES_PER_KWH, NOTHING
from components.errors import RecipeError
from components.planner.plan import Plan, plan_recipe
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

    def share(one: Mapping[str, float], name: str) -> str:
        if name not in one:
            return numbers.ABSENT
        return f"{one[name]:.3g} s ({one[name] / sum(one.values()):.1%})"

    rows = [
        (name.removesuffix("_seconds"), *(share(one, name) for one in parts)) for name in names
    ]
    return Grid(columns=("part of the planned step", *column_labels(entries)), rows=rows)


def _quantities(entry: ReportEntry, plan: Plan) -> Iterator[tuple[str, Cells]]:
    if plan.time is not None and plan.rates is not None:
        total, error = plan.time.total, plan.error_fraction
        between = f"{total / (1 + error):.3g} and {total * (1 + error):.3g} s"
        steps = entry.run.journal.steps
        measured = median(step.seconds for step in steps) if steps else None
        yield "step, median", _cells(total, measured, "{:.3g} s".format, between)
        planned, reached = plan.rates.tokens_per_second, entry.outcome.tokens_per_second
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


def energy_quantities(entry: ReportEntry) -> dict[str, str]:
    """Say energy, mean power and who counted them; what nothing counted is not guessed."""
    sources: Tree = (entry.run.results or {}).get("energy") or {}
    found: dict[str, str] = {}
    for name, one in (("devices", "device"), ("hosts", "host")):
        counted = entry.run.journal.energy.get(name, NOTHING)
        kwh, watts, tokens = counted.kwh, counted.watts, entry.outcome.tokens
        part = counted.fraction if counted.passed_seconds else None
        found |= {
            f"energy of the {name}": NOT_MEASURED if kwh is None else numbers.kwh(kwh),
            f"mean power of a {one}": numbers.ABSENT if watts is None else numbers.watts(watts),
            f"part of the {name}' time that was counted": numbers.written(part, ".1%"),
        }
        if name == "devices":
            whole = counted.is_whole and tokens
            share = (
                f"{numbers.measured(counted.joules / tokens)} J" if whole else numbers.ABSENT
            )
            found["joules per token, devices"] = share
        found[f"{name}, counted by"] = sources.get(name, {}).get("source", numbers.ABSENT)
    return found
