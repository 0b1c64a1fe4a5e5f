"""One self-contained HTML file from one or more run folders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.config import key_groups
from components.config.key_groups import TITLES, KeyGroup
from components.config.recipe_text import recipe_lines
from components.report import figure_tables, figures, numbers, tables
from components.report.data_card import data_sections, mixture_grid
from components.report.held_out import held_out_card, held_out_grid
from components.report.measurements import evaluation_grids, profile_grids
from components.report.outcome import ReportEntry, load_entries
from components.report.pages import check_destination, embedded, set_page, write_page
from components.report.sweep import RESULTS, Sweep, named_by_values, sweep_figure, sweep_of
from components.report.tables import Cells, Grid, grid_by_quantity


def differences_by_group(entries: Sequence[ReportEntry]) -> list[dict[str, Any]]:
    """Lay out the keys that differ, the weightiest group first; `hidden` ones have no row."""
    differing = tables.differing_keys(entries)
    computing = {key for e in entries for key in key_groups.computing_keys(e.run.recipe)}
    found: dict[KeyGroup | None, list[str]] = {}
    for key in differing:
        group = KeyGroup.MATHEMATICS if key in computing else key_groups.declared(key)
        found.setdefault(group, []).append(key)
    parts = []
    for group, title in (*TITLES.items(), (None, "of another version of the code")):
        if keys := found.get(group):
            shown = key_groups.without_profile(keys)
            rows = [(key, *differing[key]) for key in shown]
            grid = Grid(columns=("key", *(e.label for e in entries)), rows=rows)
            parts.append({"title": title, "grid": grid, "hidden": len(keys) - len(shown)})
    return parts


def verdict(parts: Iterable[Mapping[str, Any]]) -> str:
    """Describe in a line what the runs have in common."""
    titles = {part["title"] for part in parts}
    return ", ".join(
        f"{group.value}: {'differs' if TITLES[group] in titles else 'the same'}"
        for group in (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)
    )


MOST_NAMED = 8  # of a list in one cell of the table


def story_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out one row an event, run after run, in the order of time."""
    run, labelled = tables.labelled(entries)
    rows = [(*label, *cells) for entry, label in labelled for cells in _story(entry)]
    columns = (*run, "after", "step", "event", "cause", "took", "evidence")
    return Grid(columns=columns, rows=rows)


def _story(entry: ReportEntry) -> list[Cells]:
    events = entry.run.journal.events
    begin = events[0].time - events[0].seconds if events else 0.0
    return [
        (
            numbers.duration(event.time - begin),
            f"{event.step:,}",
            event.kind.replace("_", " "),
            event.cause,
            numbers.duration(event.seconds) if event.seconds else "",
            "; ".join(f"{name} {_brief(value)}" for name, value in event.evidence.items()),
        )
        for event in events
        # There may be thousands of these, and they say nothing that the goodput does not.
        if event.kind != "checkpoint"
    ]


def _brief(value: object) -> str:
    """Write the first of a long list, as of a job's nodes: the journal has all of them."""
    if isinstance(value, list) and len(value) > MOST_NAMED:
        rest = len(value) - MOST_NAMED
        return f"{numbers.exact(value[:MOST_NAMED])} and {rest:,} more"
    return numbers.exact(value)


def _goodput(entry: ReportEntry) -> dict[str, str]:
    account = entry.run.journal.goodput
    whole, progress = account.wall_seconds, "steps that led to the last weights: goodput"
    parts = {progress: account.progress_seconds, **account.lost_seconds}
    return {"wall time": numbers.duration(whole)} | {
        name: f"{part / whole:.1%} ({numbers.duration(part)})" if whole else numbers.ABSENT
        for name, part in parts.items()
    }


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Write the report whole or not at all, and return its path.

    Raises:
        RecipeError: no run is given, a folder is no run, or the destination is a folder.
    """
    check_destination(destination)
    return write_page(render(load_entries(runs)), destination)


def render(entries: Sequence[ReportEntry]) -> str:
    """Set the page; all text is escaped, whatever a recipe or a source is called."""
    differences, sweep = differences_by_group(entries), sweep_of(entries)
    differing = frozenset(tables.differing_keys(entries))
    parts = {
        "entries": entries,
        "single": entries[0] if len(entries) == 1 else None,
        "names": list(dict.fromkeys(entry.run.recipe["name"] for entry in entries)),
        "reasons": list(dict.fromkeys(entry.run.recipe["why"] for entry in entries)),
        "miniatures": [entry.label for entry in entries if figure_tables.is_miniature(entry)],
        "cards": (held_out_card(entries[0].outcome), *tables.key_figures(entries[0])),
        "colours": [figures.colour(index) for index in range(len(entries))],
        "charts": _charts(entries, sweep),
        "sweep": sweep,
        "differences": differences,
        "verdict": verdict(differences),
        "most_open_rows": 12,  # of the mixture: more push the charts below out of sight
        "data": data_sections(entries),
        "tables": _tables(entries),
        "recipes": [(e.label, recipe_lines(e.run.recipe, differing)) for e in entries],
    }
    return set_page("page.html.j2", parts)


def _charts(entries: Sequence[ReportEntry], sweep: Sweep | None) -> dict[str, str | None]:
    named = named_by_values(entries, sweep)
    drawn: dict[str, Any] = {
        "loss": figures.loss_figure(named),
        "sources": figures.sources_figure(named),
        "rate": figures.step_figure(named, "lr"),
        "gradient": figures.step_figure(named, "gradient_norm"),
        "throughput": figures.step_figure(named, "tokens_per_second", exponents="B"),
    }
    if sweep is not None:
        drawn |= {n: sweep_figure(entries, sweep, result) for n, result in RESULTS.items()}
    return {name: embedded(name, figure) for name, figure in drawn.items()}


def _tables(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    plans = [figure_tables.plan_of(entry.run.recipe) for entry in entries]
    return {
        "summary": tables.summary_grid(entries),
        "held_out": held_out_grid(entries),
        "mixture": mixture_grid(entries),
        "planned": figure_tables.planned_grid(entries, plans),
        "parts": figure_tables.parts_grid(entries, plans),
        "energy": grid_by_quantity(entries, figure_tables.energy_quantities),
        "published": figure_tables.published_grid(entries),
        "assumed": figure_tables.assumed_grid(entries),
        "flops": tables.flops_grid(entries),
        "environment": tables.environment_grid(entries),
        "incidents": grid_by_quantity(entries, tables.incidents),
        "goodput": grid_by_quantity(entries, _goodput),
        "story": story_grid(entries),
        **evaluation_grids(entries),
        **profile_grids(entries),
    }
