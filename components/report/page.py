"""The report of a run, of several beside each other, and of a tree, as a document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from components.config.recipe_text import recipe_lines
from components.report import captions, figures
from components.report.data_card import data_section, mixture_grid
from components.report.differences import differences_by_group, verdict
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
from components.report.measurements import evaluation_grids, read_evaluations
from components.report.outcome import ReportEntry, load_entries
from components.report.run_tables import numbers_of_runs
from components.report.sweep import Sweep, named_by_values, sweep_charts, sweep_of
from components.report.tables import Grid, differing_keys, key_figures, summary_grid

_MOST_NAMES = 4  # of recipes in the heading
_STEPS = (
    ("lr", "Learning rate"),
    ("gradient_norm", "Norm of the gradient"),
    ("tokens_per_second", "Tokens per second"),
)
_MINIATURE = (
    "the recipe made small by rule: every feature of the architecture stays; width, depth, "
    "vocabulary, sequence, batch and tokens shrink. No figure below compares directly with a "
    "published one."
)
_NO_RESULTS = (
    "This run wrote no results: it was killed, or it still trains. Its figures come from its "
    "journal, up to the last whole line."
)


@dataclass(frozen=True)
class TreeParts:
    """What the page of a tree has beside that of several runs.

    ``moved`` are the runs with tokens on the trunk's clock, ``added`` how many were added.
    """

    grid: Grid
    chart: Figure
    moved: tuple[ReportEntry, ...]
    added: tuple[int, ...]


def write_report(runs: Sequence[Path], destination: Path, *, script: str | None = None) -> Path:
    """Write the report whole or not at all; return its path. ``script``: `render_document`.

    Raises:
        RecipeError: no run is given, a folder is no run, or the destination is a folder.
    """
    check_destination(destination)
    entries = load_entries(runs)
    document = report_document(entries, own_pages(entries, destination))
    return write_document(document, destination, script)


def own_pages(entries: Sequence[ReportEntry], destination: Path) -> dict[str, str]:
    """Link each run's own page, by the run's label, where it lies below the comparison."""
    found = {}
    for entry in entries:
        page, here = entry.run.folder.absolute() / "report.html", destination.absolute().parent
        if page.is_file() and here in page.parent.parents:
            # A colon, which would make a scheme of it, is quoted.
            found[entry.label] = quote(page.relative_to(here).as_posix())
    return found


def report_document(
    entries: Sequence[ReportEntry],
    links: Mapping[str, str] | None = None,
    tree: TreeParts | None = None,
) -> ReportDocument:
    """Describe one run, or compare several, with a tree of them above."""
    first, alone = entries[0], len(entries) == 1
    reasons = list(dict.fromkeys(entry.run.recipe["why"] for entry in entries))
    sweep = None if tree else sweep_of(entries)
    compared = () if alone else _compared(entries, links or {}, tree, sweep)
    return ReportDocument(
        kind="Run report" if alone else f"Run report · {len(entries)} runs",
        title=_heading(list(dict.fromkeys(entry.run.recipe["name"] for entry in entries))),
        why=reasons[0] if len(reasons) == 1 else "",
        tags=_tags(first) if alone else (),
        notices=tuple(_notices(entries)),
        cards=(held_out_card(first.outcome), *key_figures(first)) if alone else (),
        sections=(*compared, *_measured(entries, tree, sweep), _recipe(entries)),
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
    entries: Sequence[ReportEntry],
    links: Mapping[str, str],
    tree: TreeParts | None,
    sweep: Sweep | None,
) -> Iterator[ReportSection]:
    """Set the runs beside each other: their tree, results, swept keys and differences."""
    if tree is not None:
        yield ReportSection("Tree", (tree.chart, tree.grid), captions.TREE)
    marks = [(figures.colour(place), figures.mark(place)) for place in range(len(entries))]
    summary = replace(summary_grid(entries), marks=marks, links=links)
    yield ReportSection("Runs", (summary,), captions.RUNS)
    if sweep is not None:
        others = "; one colour for each choice of the other keys"
        several = others if len(set(sweep.series)) > 1 else ""
        caption = f"What came out of each run over the key that its command named{several}."
        charts = tuple(sweep_charts(entries, sweep))
        if not any(chart.name in {"swept_loss", "swept_plain"} for chart in charts):
            caption += " No run has measured a held-out loss."
        yield ReportSection(f"Over {sweep.key}", (charts,), caption)
    parts = differences_by_group(entries)
    same = "The recipes are the same, key by key."
    caption = f"{verdict(parts).capitalize()}." if parts else ""
    blocks = [block for part in parts for block in (part.grid, part.note)]
    yield ReportSection("What differs", blocks or (same,), caption)


def _measured(
    entries: Sequence[ReportEntry], tree: TreeParts | None, sweep: Sweep | None
) -> Iterator[ReportSection]:
    """Give the sections that one run and several have, in the order of the page."""
    alone = len(entries) == 1
    named = tree.moved if tree else named_by_values(entries, sweep)
    added = tree.added if tree else (0,) * len(entries)
    evaluated = [
        [_later(one, tokens) for one in read_evaluations(entry.run.folder)]
        for entry, tokens in zip(named, added, strict=True)
    ]
    scores = figures.score_figure(named, evaluated, least=1 if tree else 2)
    sources = figures.sources_figure(named)
    if any(e.run.journal.steps or e.run.journal.held_out for e in entries):
        label = "Training and held-out loss over tokens"
        loss = Figure("loss", lambda: tell_apart(figures.loss_figure(named), named), label)
        thinned = captions.THINNED.format(figures.MOST_POINTS // 2)
        is_thinned = any(len(e.run.journal.steps) > figures.MOST_POINTS for e in entries)
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
    if any(entry.run.journal.steps for entry in entries):
        yield ReportSection("Steps", (tuple(_step_chart(named, *one) for one in _STEPS),))
    yield from numbers_of_runs(entries)


def _step_chart(entries: Sequence[ReportEntry], name: str, title: str) -> Figure:
    def draw() -> figures.PlotlyFigure:
        return tell_apart(figures.step_figure(entries, name), entries)

    return Figure(name, draw, f"{title} over tokens", title)


def _later(evaluation: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """Count an evaluation's tokens from further on."""
    return {**evaluation, "tokens_trained": (evaluation.get("tokens_trained") or 0) + tokens}


def _recipe(entries: Sequence[ReportEntry]) -> ReportSection:
    """Fold the recipe of the first run; the lines on which another differs are marked."""
    differing = frozenset(differing_keys(entries))
    lines = list(recipe_lines(entries[0].run.recipe, differing))
    marked = frozenset(place for place, line in enumerate(lines) if line.differs)
    whose = f"of {entries[0].label}; what differs in another run is marked"
    title = f"The whole recipe{', as this run read it' if len(entries) == 1 else f' {whose}'}"
    code = CodeBlock("\n".join(line.text for line in lines), marked)
    return ReportSection("Resolved recipe", (Fold(title, [code]),))
