"""One self-contained HTML file from one or more run folders."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config.key_groups import (
    TITLES,
    KeyGroup,
    computing_keys,
    declared,
    without_profile,
)
from components.config.recipe_text import recipe_lines
from components.report import figures, numbers, planned, provenance, tables
from components.report.cards import key_figures
from components.report.data_section import data_sections, mixture_grid
from components.report.document import check_destination, embedded, set_page, write_page
from components.report.evaluation import evaluation_grids
from components.report.outcome import ReportEntry, load_entries
from components.report.profile import profile_grids
from components.report.sweep import RESULTS, Sweep, named_by_values, sweep_figure, sweep_of
from components.report.tables import (
    Grid,
    TableRow,
    column_labels,
    differing_keys,
    row_labels,
    run_column,
)
from components.run.history import RunEvent

_OTHER_VERSION = "of another version of the code"


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The keys of one group on which the runs disagree; ``hidden`` ones follow from others."""

    title: str
    grid: Grid
    hidden: int


def differences_by_group(entries: Sequence[ReportEntry]) -> tuple[Differences, ...]:
    """Lay out a table for each group that has differences, the weightiest first."""
    differing = differing_keys(entries)
    computing = frozenset[str]().union(*(computing_keys(e.run.recipe) for e in entries))
    found: dict[KeyGroup | None, list[str]] = {}
    for key in differing:
        group = KeyGroup.MATHEMATICS if key in computing else declared(key)
        found.setdefault(group, []).append(key)
    parts = []
    for group, title in (*TITLES.items(), (None, _OTHER_VERSION)):
        if keys := found.get(group):
            shown = without_profile(keys)
            rows = tuple(TableRow(cells=(key, *differing[key])) for key in shown)
            grid = Grid(columns=("key", *(e.label for e in entries)), rows=rows)
            parts.append(Differences(title=title, grid=grid, hidden=len(keys) - len(shown)))
    return tuple(parts)


def verdict(parts: Iterable[Differences]) -> str:
    """Say in a line what the runs have in common."""
    titles = {part.title for part in parts}
    said = (
        f"{group.value}: {'differs' if TITLES[group] in titles else 'the same'}"
        for group in (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)
    )
    return ", ".join(said)


# There may be thousands of them, and they say nothing that the goodput does not.
_TOLD_ELSEWHERE = ("checkpoint",)
MOST_NAMED = 8  # of a list in one cell of the table


def story_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out one row an event, run after run, in the order of time."""
    rows = [
        TableRow(cells=(*label, *cells))
        for entry, label in zip(entries, row_labels(entries), strict=True)
        for cells in _story(entry)
    ]
    columns = (*run_column(entries), "after", "step", "event", "cause", "took", "evidence")
    return Grid(columns=columns, rows=tuple(rows))


def goodput_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out what part of each run's time made progress, and what the rest was."""
    accounts = [entry.run.journal.goodput for entry in entries]
    rows = [
        ("wall time", *(numbers.duration(one.wall_seconds) for one in accounts)),
        (
            "steps that led to the last weights: goodput",
            *(_part(one.progress_seconds, one.wall_seconds) for one in accounts),
        ),
    ]
    for name in accounts[0].lost_seconds:
        parts = (_part(one.lost_seconds[name], one.wall_seconds) for one in accounts)
        rows.append((name, *parts))
    return Grid(
        columns=("", *column_labels(entries)),
        rows=tuple(TableRow(cells=cells) for cells in rows),
    )


def _story(entry: ReportEntry) -> list[tuple[str, ...]]:
    events = entry.run.journal.events
    begin = events[0].time - events[0].seconds if events else 0.0
    return [
        (
            numbers.duration(event.time - begin),
            f"{event.step:,}",
            event.kind.replace("_", " "),
            event.cause,
            numbers.duration(event.seconds) if event.seconds else "",
            _evidence(event),
        )
        for event in events
        if event.kind not in _TOLD_ELSEWHERE
    ]


def _evidence(event: RunEvent) -> str:
    return "; ".join(f"{name} {_brief(value)}" for name, value in event.evidence.items())


def _brief(value: object) -> str:
    """Write the first of a long list, as of a job's nodes: the journal has all of them."""
    if isinstance(value, list) and len(value) > MOST_NAMED:
        rest = len(value) - MOST_NAMED
        return f"{numbers.exact(value[:MOST_NAMED])} and {rest:,} more"
    return numbers.exact(value)


def _part(seconds: float, whole: float) -> str:
    if not whole:
        return numbers.ABSENT
    return f"{seconds / whole:.1%} ({numbers.duration(seconds)})"


_MOST_OPEN_ROWS = 12  # of the mixture: more would push the charts below out of sight


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Write the report whole or not at all, and return its path.

    Raises:
        RecipeError: no run folder is given, one of them is no run, or the destination is a
            folder.
    """
    check_destination(destination)
    return write_page(render(load_entries(runs)), destination)


def render(entries: Sequence[ReportEntry]) -> str:
    """Set the page; all text is escaped, whatever a recipe or a source is called."""
    differences, sweep = differences_by_group(entries), sweep_of(entries)
    parts = {
        "entries": entries,
        "single": entries[0] if len(entries) == 1 else None,
        "names": list(dict.fromkeys(entry.run.recipe["name"] for entry in entries)),
        "reasons": list(dict.fromkeys(entry.run.recipe["why"] for entry in entries)),
        "miniatures": [entry.label for entry in entries if provenance.is_miniature(entry)],
        "cards": key_figures(entries[0]),
        "colours": [figures.colour(index) for index in range(len(entries))],
        "charts": _charts(named_by_values(entries, sweep)) | _sweep_charts(entries, sweep),
        "sweep": sweep,
        "differences": differences,
        "verdict": verdict(differences),
        "most_open_rows": _MOST_OPEN_ROWS,
        "data": data_sections(entries),
        "tables": _tables(entries),
        "recipes": _recipes(entries),
    }
    return set_page("page.html.j2", parts)


def _charts(entries: Sequence[ReportEntry]) -> dict[str, str | None]:
    drawn: dict[str, Callable[[Sequence[ReportEntry]], Any]] = {
        "loss": figures.loss_figure,
        "sources": figures.sources_figure,
        "rate": figures.rate_figure,
        "gradient": figures.gradient_figure,
        "throughput": figures.throughput_figure,
    }
    return {name: embedded(name, draw(entries)) for name, draw in drawn.items()}


def _sweep_charts(entries: Sequence[ReportEntry], sweep: Sweep | None) -> dict[str, str | None]:
    if sweep is None:
        return {}
    return {
        name: embedded(name, sweep_figure(entries, sweep, result))
        for name, result in RESULTS.items()
    }


def _tables(entries: Sequence[ReportEntry]) -> dict[str, tables.Grid]:
    plans = [planned.plan_of(entry.run.recipe) for entry in entries]
    return {
        "summary": tables.summary_grid(entries),
        "mixture": mixture_grid(entries),
        "planned": planned.planned_grid(entries, plans),
        "parts": planned.parts_grid(entries, plans),
        "energy": planned.energy_grid(entries),
        "published": provenance.published_grid(entries),
        "assumed": provenance.assumed_grid(entries),
        "flops": tables.flops_grid(entries),
        "environment": tables.environment_grid(entries),
        "incidents": tables.incidents_grid(entries),
        "goodput": goodput_grid(entries),
        "story": story_grid(entries),
        **evaluation_grids(entries),
        **profile_grids(entries),
    }


def _recipes(entries: Sequence[ReportEntry]) -> list[tuple[str, Any]]:
    differing = frozenset(tables.differing_keys(entries))
    return [(entry.label, recipe_lines(entry.run.recipe, differing)) for entry in entries]
