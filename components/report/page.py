"""The report of a run, and the comparison of several: what belongs together in one table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from components.config import key_groups
from components.config.key_groups import TITLES, KeyGroup
from components.config.recipe_text import recipe_lines
from components.report import figure_tables, figures, numbers, tables
from components.report.data_card import data_grid, data_sections, mixture_grid
from components.report.held_out import held_out_card, held_out_grid
from components.report.html import check_destination, figure_html, render_template, write_page
from components.report.measurements import evaluation_grids, profile_grids, read_evaluations
from components.report.outcome import ReportEntry, load_entries
from components.report.sweep import RESULTS, Sweep, named_by_values, sweep_figure, sweep_of
from components.report.tables import Grid, grid_by_quantity


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


@dataclass(frozen=True)
class TreeParts:
    """What the page of a tree has beside that of several runs.

    ``moved`` are the runs with tokens on the trunk's clock, ``added`` how many were added.
    """

    grid: Grid
    chart: str | None
    moved: tuple[ReportEntry, ...]
    added: tuple[int, ...]


_MOST_NAMES = 4  # of recipes in the heading
MOST_NAMED = 8  # of a list in one cell of the table


def story_grid(entry: ReportEntry) -> Grid:
    """Lay out one row an event of a run, in the order of time."""
    events = entry.run.journal.events
    begin = events[0].time - events[0].seconds if events else 0.0
    rows = [
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
    return Grid(columns=("after", "step", "event", "cause", "took", "evidence"), rows=rows)


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


def write_report(runs: Sequence[Path], destination: Path, *, script: str | None = None) -> Path:
    """Write the report whole or not at all; return its path. ``script``: `render_template`.

    Raises:
        RecipeError: no run is given, a folder is no run, or the destination is a folder.
    """
    check_destination(destination)
    entries = load_entries(runs)
    return write_page(render(entries, own_pages(entries, destination), script), destination)


def own_pages(entries: Sequence[ReportEntry], destination: Path) -> dict[str, str]:
    """Link each run's own page, by the run's label, where it lies below the comparison."""
    found = {}
    for entry in entries:
        page, here = entry.run.folder.absolute() / "report.html", destination.absolute().parent
        if page.is_file() and here in page.parent.parents:
            # A colon, which would make a scheme of it, is quoted.
            found[entry.label] = quote(page.relative_to(here).as_posix())
    return found


def render(
    entries: Sequence[ReportEntry],
    links: Mapping[str, str] | None = None,
    script: str | None = None,
    tree: TreeParts | None = None,
) -> str:
    """Set the page; all text is escaped, whatever a recipe or a source is called."""
    differences = differences_by_group(entries)
    sweep = None if tree else sweep_of(entries)
    differing, data = frozenset(tables.differing_keys(entries)), data_sections(entries)
    parts = {
        "entries": entries,
        "single": entries[0] if len(entries) == 1 else None,
        "heading": _heading(list(dict.fromkeys(e.run.recipe["name"] for e in entries))),
        "reasons": list(dict.fromkeys(entry.run.recipe["why"] for entry in entries)),
        "miniatures": [entry.label for entry in entries if figure_tables.is_miniature(entry)],
        "cards": (held_out_card(entries[0].outcome), *tables.key_figures(entries[0])),
        "links": links or {},
        "marks": [(figures.colour(i), figures.mark(i)) for i in range(len(entries))],
        "charts": _charts(entries, sweep, tree),
        "stretches": figures.MOST_POINTS // 2,
        "thinned": any(len(e.run.journal.steps) > figures.MOST_POINTS for e in entries),
        "tree": tree,
        "sweep": sweep,
        "differences": differences,
        "verdict": verdict(differences),
        "data": data,
        "tables": {"data": data_grid(data), **_tables(entries)},
        # Of several the first, with marks: what differs has its table.
        "recipe": recipe_lines(entries[0].run.recipe, differing),
    }
    return render_template("page.html.j2", parts, script)


def _heading(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    first = names[: _MOST_NAMES - 1]
    return f"{', '.join(first)} and {len(names) - len(first)} more"


def _charts(
    entries: Sequence[ReportEntry], sweep: Sweep | None, tree: TreeParts | None
) -> dict[str, str | None]:
    named = tree.moved if tree else named_by_values(entries, sweep)
    added = tree.added if tree else (0,) * len(entries)
    evaluated = [
        [_later(one, tokens) for one in read_evaluations(entry.run.folder)]
        for entry, tokens in zip(named, added, strict=True)
    ]
    drawn: dict[str, Any] = {
        "loss": figures.loss_figure(named),
        "sources": figures.sources_figure(named),
        "rate": figures.step_figure(named, "lr"),
        "gradient": figures.step_figure(named, "gradient_norm"),
        "throughput": figures.step_figure(named, "tokens_per_second", exponents="B"),
        "scores": figures.score_figure(named, evaluated, least=1 if tree else 2),
    }
    for figure in filter(None, drawn.values()):
        figures.tell_apart(figure, named)
    if sweep is not None:
        drawn |= {n: sweep_figure(entries, sweep, result) for n, result in RESULTS.items()}
    return {name: figure_html(name, figure) for name, figure in drawn.items()}


def _later(evaluation: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """Count an evaluation's tokens from further on."""
    return {**evaluation, "tokens_trained": (evaluation.get("tokens_trained") or 0) + tokens}


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
        # Of several runs each has its own on its page.
        "story": story_grid(entries[0]) if len(entries) == 1 else Grid(),
        **evaluation_grids(entries),
        **profile_grids(entries),
    }
