"""Run report as a document: of one run, of several compared, and of a tree of runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from components.config.recipe_text import recipe_lines
from components.report import captions, figure_tables, figures, numbers, tables
from components.report.data_card import data_section, mixture_grid
from components.report.differences import describe_groups, differences_by_group
from components.report.document import (
    CodeBlock,
    Figure,
    Fold,
    ReportDocument,
    ReportSection,
    write_document,
)
from components.report.figure_tables import is_miniature
from components.report.figures import tell_apart
from components.report.held_out import held_out_card, held_out_grid
from components.report.html import check_destination
from components.report.measurements import evaluation_grids, profile_grid, read_evaluations
from components.report.outcome import ReportEntry, load_entries
from components.report.tables import (
    Grid,
    differing_keys,
    grid_by_quantity,
    grid_of,
    key_figures,
    summary_grid,
)

_MOST_NAMES = 4  # recipes in the heading
MOST_NAMED = 8  # items of a list in one table cell
_STEPS = (
    ("lr", "Learning rate"),
    ("gradient_norm", "Gradient norm"),
    ("tokens_per_second", "Tokens per second"),
)
_MINIATURE = (
    "the recipe with all features of its architecture, but smaller width, depth, vocabulary, "
    "sequence, batch and token budget. Do not compare the values below with published values."
)
_NO_RESULTS = (
    "This run wrote no results: it was killed or is still training. The values come from its "
    "history, up to the last complete line."
)


@dataclass(frozen=True)
class TreeParts:
    """Additional parts of a tree's page, compared to a page of several runs.

    ``moved`` are the runs with tokens on the root's clock, ``added`` the tokens added to each.
    """

    grid: Grid
    chart: Figure
    moved: tuple[ReportEntry, ...]
    added: tuple[int, ...]


def write_report(runs: Sequence[Path], destination: Path, *, script: str | None = None) -> Path:
    """Write the report atomically and return its path. ``script``: see `render_document`."""
    check_destination(destination)
    entries = load_entries(runs)
    document = report_document(entries, own_pages(entries, destination))
    return write_document(document, destination, script)


def own_pages(entries: Sequence[ReportEntry], destination: Path) -> dict[str, str]:
    """Return links to the runs' own pages below the comparison's folder, by run label."""
    links = {}
    for entry in entries:
        page, here = entry.run.folder.absolute() / "report.html", destination.absolute().parent
        if page.is_file() and here in page.parent.parents:
            # Quoting escapes colons, which would make the first part a URL scheme.
            links[entry.label] = quote(page.relative_to(here).as_posix())
    return links


def report_document(
    entries: Sequence[ReportEntry],
    links: Mapping[str, str] | None = None,
    tree: TreeParts | None = None,
) -> ReportDocument:
    """Return the report of one run, or the comparison of several, with their tree if given."""
    first, alone = entries[0], len(entries) == 1
    reasons = list(dict.fromkeys(entry.run.recipe["description"] for entry in entries))
    compared = () if alone else _compared(entries, links or {}, tree)
    return ReportDocument(
        kind="Run report" if alone else f"Run report · {len(entries)} runs",
        title=_heading(list(dict.fromkeys(entry.run.recipe["name"] for entry in entries))),
        why=reasons[0] if len(reasons) == 1 else "",
        tags=_tags(first) if alone else (),
        notices=tuple(_notices(entries)),
        cards=(held_out_card(first.outcome), *key_figures(first)) if alone else (),
        sections=(*compared, *_measured(entries, tree), _recipe(entries)),
    )


def _heading(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    first = names[: _MOST_NAMES - 1]
    return f"{', '.join(first)} and {len(names) - len(first)} more"


def _tags(entry: ReportEntry) -> tuple[tuple[str, str], ...]:
    recipe, status = entry.run.recipe, entry.outcome.status
    places = (f"scale {recipe['scale']['name']}", f"cluster {recipe['cluster']['name']}")
    return (status, status), *((text, "") for text in (*places, f"run {entry.label}"))


def _notices(entries: Sequence[ReportEntry]) -> Iterator[str]:
    small = [entry.label for entry in entries if is_miniature(entry)]
    if small:
        which = "This run" if len(entries) == 1 else ", ".join(small)
        yield f"Miniature. {which}: {_MINIATURE}"
    if len(entries) == 1 and not entries[0].run.results:
        yield _NO_RESULTS


def _compared(
    entries: Sequence[ReportEntry], links: Mapping[str, str], tree: TreeParts | None
) -> Iterator[ReportSection]:
    """Yield the sections that compare runs: tree, results and differences."""
    if tree is not None:
        yield ReportSection("Tree", (tree.chart, tree.grid), captions.TREE)
    marks = [
        (figures.choose_color(place), figures.choose_mark(place))
        for place in range(len(entries))
    ]
    summary = replace(summary_grid(entries), marks=marks, links=links)
    yield ReportSection("Runs", (summary,), captions.RUNS)
    parts = differences_by_group(entries)
    same = "All keys of the recipes are equal."
    caption = f"{describe_groups(parts).capitalize()}." if parts else ""
    blocks = [block for part in parts for block in (part.grid, part.omission_note)]
    yield ReportSection("What differs", blocks or (same,), caption)


def _measured(
    entries: Sequence[ReportEntry], tree: TreeParts | None
) -> Iterator[ReportSection]:
    """Yield the sections that one run and several runs have in common, in page order."""
    alone = len(entries) == 1
    named = tree.moved if tree else entries
    added = tree.added if tree else (0,) * len(entries)
    evaluated = [
        [_later(evaluation, tokens) for evaluation in read_evaluations(entry.run.folder)]
        for entry, tokens in zip(named, added, strict=True)
    ]
    scores = figures.score_figure(named, evaluated, least=1 if tree else 2)
    sources = figures.sources_figure(named)
    if any(e.run.history.steps or e.run.history.held_out for e in entries):
        label = "Training and held-out loss over tokens"
        loss = Figure("loss", lambda: tell_apart(figures.loss_figure(named), named), label)
        thinned = captions.THINNED.format(figures.MOST_POINTS // 2)
        is_thinned = any(len(e.run.history.steps) > figures.MOST_POINTS for e in entries)
        yield ReportSection("Loss", (loss,), captions.LOSS + thinned * is_thinned)
    label = "Held-out loss of each source, and both means"
    folded = "Held-out losses in numbers, with each source's share of the mixture"
    if sources is not None:
        blocks = (
            Figure("sources", lambda: tell_apart(sources, named), label),
            Fold(folded, [held_out_grid(entries)]),
        )
        yield ReportSection("Held-out loss by source", blocks, captions.SOURCES)
    yield data_section(entries)
    mixture = f"{captions.MIXTURE}{captions.PROMISED * alone}."
    yield ReportSection("Mixture", (mixture_grid(entries),), mixture)
    label = "Scores over tokens; the table has the numbers"
    grids = evaluation_grids(entries).values()
    chart = Figure("scores", lambda: tell_apart(scores, named), label) if scores else ""
    yield ReportSection("Evaluated", (chart, *grids), captions.EVALUATED)
    if any(entry.run.history.steps for entry in entries):
        yield ReportSection("Steps", (tuple(_step_chart(named, *chart) for chart in _STEPS),))
    yield from _numbers(entries)


def _numbers(entries: Sequence[ReportEntry]) -> Iterator[ReportSection]:
    """Yield the sections below the charts, in page order."""
    alone = len(entries) == 1
    is_small = any(map(is_miniature, entries))

    def fold_grid(grid: Grid, rows: str) -> Grid:
        """Fold a long table of several runs. A single run's table shows all rows."""
        return grid if alone else replace(grid, fold=rows)

    yield ReportSection("Profile", (profile_grid(entries),), captions.PROFILE)
    plans = [figure_tables.plan_of(entry.run.recipe) for entry in entries]
    planned = fold_grid(figure_tables.planned_grid(entries, plans), "figures")
    parts = figure_tables.parts_grid(entries, plans)
    yield ReportSection("Planned and measured", (planned, parts), captions.PLANNED)
    energy = grid_by_quantity(entries, figure_tables.energy_quantities)
    yield ReportSection("Energy", (energy,), captions.ENERGY)
    published = fold_grid(figure_tables.published_grid(entries), "published figures")
    title = f"Published and {'this run' if alone else 'these runs'}"
    yield ReportSection(
        title, (published,), captions.PUBLISHED + captions.SMALL_RESULTS * is_small
    )
    assumed = fold_grid(figure_tables.assumed_grid(entries), "assumed values")
    yield ReportSection(
        "Assumed", (assumed,), captions.ASSUMED + captions.SMALL_COUNTS * is_small
    )
    yield ReportSection("Arithmetic", (tables.flops_grid(entries),), captions.ARITHMETIC)
    incidents = grid_by_quantity(entries, tables.count_incidents, "incidents")
    yield ReportSection("Incidents", (incidents,))
    goodput = grid_by_quantity(entries, _goodput, "figures lines")
    yield ReportSection("Goodput", (goodput,), captions.GOODPUT)
    if alone:  # several runs have their stories on their own pages
        yield ReportSection("Story", (events_grid(entries[0]),), captions.STORY)
    yield ReportSection("Environment", (tables.environment_grid(entries),))


def events_grid(entry: ReportEntry) -> Grid:
    """Return a table with one row per event of a run, in the order of time."""
    events = entry.run.history.events
    begin = events[0].time - events[0].seconds if events else 0.0
    columns: dict[str, Callable[[Any], str]] = {
        "after": lambda event: numbers.format_duration(event.time - begin),
        "step": lambda event: f"{event.step:,}",
        "event": lambda event: numbers.replace_underscores(event.kind),
        "cause": lambda event: event.cause,
        "took": lambda event: numbers.format_duration(event.seconds) if event.seconds else "",
        "evidence": lambda event: "; ".join(
            f"{name} {_brief(value)}" for name, value in event.evidence.items()
        ),
    }
    # Checkpoints may number thousands, and the goodput table already covers them.
    shown = (event for event in events if event.kind != "checkpoint")
    return grid_of(shown, columns, kind="story", fold="events")


def _brief(value: object) -> str:
    """Format a value, with only the first items of a long list. The history has all items."""
    if isinstance(value, list) and len(value) > MOST_NAMED:
        rest = len(value) - MOST_NAMED
        return f"{numbers.format_exact(value[:MOST_NAMED])} and {rest:,} more"
    return numbers.format_exact(value)


def _goodput(entry: ReportEntry) -> dict[str, str]:
    account = entry.run.history.goodput
    whole, progress = account.wall_seconds, "steps of the final weights (goodput)"
    parts = {progress: account.progress_seconds, **account.lost_seconds}
    return {"wall time": numbers.format_duration(whole)} | {
        name: f"{part / whole:.1%} ({numbers.format_duration(part)})"
        if whole
        else numbers.ABSENT
        for name, part in parts.items()
    }


def _step_chart(entries: Sequence[ReportEntry], name: str, title: str) -> Figure:
    def draw_chart() -> figures.PlotlyFigure:
        return tell_apart(figures.step_figure(entries, name), entries)

    return Figure(name, draw_chart, f"{title} over tokens", title)


def _later(evaluation: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """Add ``tokens`` to an evaluation's token count."""
    return {**evaluation, "tokens_trained": (evaluation.get("tokens_trained") or 0) + tokens}


def _recipe(entries: Sequence[ReportEntry]) -> ReportSection:
    """Return the folded recipe of the first run; mark lines that differ in another run."""
    differing = frozenset(differing_keys(entries))
    lines = list(recipe_lines(entries[0].run.recipe, differing))
    marked = frozenset(place for place, line in enumerate(lines) if line.differs)
    owner = f"of {entries[0].label}; keys that differ in other runs are marked"
    title = f"The full recipe {'of this run' if len(entries) == 1 else owner}"
    code = CodeBlock("\n".join(line.text for line in lines), marked)
    return ReportSection("Resolved recipe", (Fold(title, [code]),))
