"""One self-contained HTML file from one or more run folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from components.report import energy, figures, planned, provenance, story, tables
from components.report.cards import key_figures
from components.report.data_section import data_sections
from components.report.differences import differences_by_group, verdict
from components.report.document import check_destination, embedded, set_page, write_page
from components.report.evaluation import evaluation_grids
from components.report.mixture import mixture_grid
from components.report.outcome import Entry, load_entries
from components.report.profile import profile_grids
from components.report.sweep import RESULTS, Sweep, named_by_values, sweep_figure, sweep_of
from components.spec.recipe_text import recipe_lines

_MOST_OPEN_ROWS = 12  # of the mixture: more would push the charts below out of sight


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Write the report whole or not at all, and return its path.

    Raises:
        RecipeError: no run folder is given, one of them is no run, or the destination is a
            folder.
    """
    check_destination(destination)
    return write_page(render(load_entries(runs)), destination)


def render(entries: Sequence[Entry]) -> str:
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


def _charts(entries: Sequence[Entry]) -> dict[str, str | None]:
    drawn: dict[str, Callable[[Sequence[Entry]], Any]] = {
        "loss": figures.loss_figure,
        "sources": figures.sources_figure,
        "rate": figures.rate_figure,
        "gradient": figures.gradient_figure,
        "throughput": figures.throughput_figure,
    }
    return {name: embedded(name, draw(entries)) for name, draw in drawn.items()}


def _sweep_charts(entries: Sequence[Entry], sweep: Sweep | None) -> dict[str, str | None]:
    if sweep is None:
        return {}
    return {
        name: embedded(name, sweep_figure(entries, sweep, result))
        for name, result in RESULTS.items()
    }


def _tables(entries: Sequence[Entry]) -> dict[str, tables.Grid]:
    plans = [planned.plan_of(entry.run.recipe) for entry in entries]
    return {
        "summary": tables.summary_grid(entries),
        "mixture": mixture_grid(entries),
        "planned": planned.planned_grid(entries, plans),
        "parts": planned.parts_grid(entries, plans),
        "energy": energy.energy_grid(entries),
        "published": provenance.published_grid(entries),
        "assumed": provenance.assumed_grid(entries),
        "flops": tables.flops_grid(entries),
        "environment": tables.environment_grid(entries),
        "incidents": tables.incidents_grid(entries),
        "goodput": story.goodput_grid(entries),
        "story": story.story_grid(entries),
        **evaluation_grids(entries),
        **profile_grids(entries),
    }


def _recipes(entries: Sequence[Entry]) -> list[tuple[str, Any]]:
    differing = frozenset(tables.differing_keys(entries))
    return [(entry.label, recipe_lines(entry.run.recipe, differing)) for entry in entries]
