"""The energy that the counters of devices and hosts told, a column a run."""

from collections.abc import Sequence

from components.energy.counted import NOTHING, Counted
from components.report import numbers
from components.report.outcome import Entry
from components.report.planned import NOT_MEASURED
from components.report.run_folder import Tree
from components.report.tables import Grid, Row, column_labels


def energy_grid(entries: Sequence[Entry]) -> Grid:
    """Lay out energy, mean power and who counted them; what nothing counted is not guessed."""
    columns = [_quantities(entry) for entry in entries]
    rows = [Row(cells=(name, *(column[name] for column in columns))) for name in columns[0]]
    return Grid(columns=("", *column_labels(entries)), rows=tuple(rows))


def _quantities(entry: Entry) -> dict[str, str]:
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


def _counted(name: str, one: str, counted: Counted) -> dict[str, str]:
    kwh, watts = counted.kwh, counted.watts
    part = f"{counted.fraction:.1%}" if counted.passed_seconds else numbers.ABSENT
    return {
        f"energy of the {name}": NOT_MEASURED if kwh is None else numbers.kwh(kwh),
        f"mean power of a {one}": numbers.ABSENT if watts is None else numbers.watts(watts),
        f"part of the {name}' time that was counted": part,
    }


def _per_token(devices: Counted, tokens: int) -> str:
    if not devices.is_whole or not tokens:
        return numbers.ABSENT
    return f"{numbers.measured(devices.joules / tokens)} J"


def _source(sources: Tree, name: str) -> str:
    return str(sources[name]["source"]) if name in sources else numbers.ABSENT
