"""The page of a tree of runs: where each node comes from, how it is, all curves in one chart.

Tokens are counted on the trunk's clock: a run that began with weights alone counts its own from
0, so what its parent had seen is added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from components.report import figures, numbers
from components.report.document import Figure, write_document
from components.report.html import check_destination
from components.report.outcome import ReportEntry, load_entries
from components.report.page import TreeParts, own_pages, report_document
from components.report.tables import Grid
from components.run.records import HeldOutEvaluation, RunEvent
from components.run.step_table import StepTable

Counted = TypeVar("Counted", HeldOutEvaluation, RunEvent)
_SYMBOLS = {"run": "circle", "merge": "diamond", "evaluate": "star", "export": "square"}


@dataclass(frozen=True)
class PlacedNode:
    """A node as the page has it; ``of`` is None below the trunk.

    ``begins`` are tokens on the trunk's clock, several of an evaluation that is repeated;
    ``ends`` where a run's budget ends. ``added`` is what its own count of tokens lacks.
    """

    name: str
    kind: str
    of: str | None
    begins: tuple[int, ...]
    ends: int
    added: int
    state: str
    folder: Path

    @property
    def has_run_folder(self) -> bool:
        return self.kind in {"run", "merge"} and (self.folder / "recipe.json").is_file()


def write_tree(trunk: PlacedNode, nodes: Sequence[PlacedNode], destination: Path) -> Path:
    """Write the page of a trunk and its nodes, each after the one that it is of.

    Raises:
        RecipeError: a folder cannot be read, or the destination is a folder.
    """
    check_destination(destination)
    shown = [trunk, *(node for node in nodes if node.has_run_folder)]
    entries = load_entries([node.folder for node in shown])
    named = [replace(e, label=node.name) for e, node in zip(entries, shown, strict=True)]
    added = {node.name: node.added for node in shown}
    label = "The tree of runs over tokens; the table below has the numbers"
    tree = TreeParts(
        grid=tree_grid([trunk, *nodes], named),
        chart=Figure("tree", lambda: tree_figure(trunk, nodes, named), label),
        moved=tuple(_moved(entry, added[entry.label]) for entry in named),
        added=tuple(added.values()),
    )
    document = report_document(named, own_pages(named, destination), tree)
    return write_document(document, destination)


def _moved(entry: ReportEntry, tokens: int) -> ReportEntry:
    """Count the tokens of a run's curves from further on."""
    if not tokens:
        return entry
    journal = entry.run.journal
    moved = replace(
        journal,
        steps=StepTable(journal.steps.values, tokens),
        held_out=_later(journal.held_out, tokens),
        events=_later(journal.events, tokens),
    )
    return replace(entry, run=replace(entry.run, journal=moved))


def _later(records: Sequence[Counted], tokens: int) -> tuple[Counted, ...]:
    return tuple(one.model_copy(update={"tokens": one.tokens + tokens}) for one in records)


def tree_grid(nodes: Sequence[PlacedNode], entries: Sequence[ReportEntry]) -> Grid:
    """Lay out one row a node, the trunk first, with the held-out loss of what trained."""
    outcomes = {entry.label: entry.outcome for entry in entries}
    rows = []
    for node in nodes:
        outcome = outcomes.get(node.name)
        loss = None
        if outcome is not None:
            loss = outcome.held_out.final or outcome.held_out.final_unweighted
        when = ", ".join(numbers.exact(one) for one in node.begins[:3])
        more = f" and {len(node.begins) - 3} more" if len(node.begins) > 3 else ""
        reached = numbers.ABSENT
        if outcome is not None and node.kind == "run":
            reached = numbers.exact(node.added + outcome.tokens)
        held_out = numbers.ABSENT if loss is None else f"{loss:.4f}"
        above = numbers.ABSENT if node is nodes[0] else node.of or nodes[0].name
        rows.append((node.name, node.kind, above, when + more, reached, node.state, held_out))
    columns = ("node", "what", "of", "after tokens", "reached", "state", "held-out loss")
    return Grid(columns=columns, rows=rows)


def tree_figure(
    trunk: PlacedNode, nodes: Sequence[PlacedNode], entries: Sequence[ReportEntry]
) -> figures.PlotlyFigure:
    """Draw each run as a line over tokens below its parent, and what is no run as marks."""
    everyone = [trunk, *nodes]
    rows = {node.name: row for row, node in enumerate(everyone)}
    reached = {entry.label: entry.outcome.tokens for entry in entries}
    colours = {entry.label: figures.colour(place) for place, entry in enumerate(entries)}
    figure = figures.empty_figure("tokens", None, height=90 + 34 * len(everyone))
    figure.update_layout(showlegend=False)
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[f"{node.name}, {node.state}" for node in everyone],
        autorange="reversed",
    )
    for node in everyone:
        row, colour = rows[node.name], colours.get(node.name, figures.colour(0))
        for begin in node.begins if node is not trunk else ():
            above = rows[node.of or trunk.name]
            line = {"color": colour, "width": 1, "dash": "dot"}
            figure.add_shape(type="line", x0=begin, x1=begin, y0=above, y1=row, line=line)
        if node.kind == "run":
            begin = node.begins[0]
            done = node.added + reached.get(node.name, 0)
            parts = ((begin, node.ends, 1.2, 0.5), (begin, max(begin, done), 4, 1.0))
            for first, last, width, opacity in parts:
                figure.add_scatter(
                    x=[first, last], y=[row, row], mode="lines", name=node.name,
                    line={"color": colour, "width": width}, opacity=opacity,
                )  # fmt: skip
        else:
            figure.add_scatter(
                x=list(node.begins), y=[row] * len(node.begins), mode="markers",
                name=node.name,
                marker={"size": 10, "symbol": _SYMBOLS[node.kind], "color": colour},
            )  # fmt: skip
    return figure


def placed(
    of: str | None, at_tokens: int | None, above: Mapping[str | None, PlacedNode]
) -> tuple[int, int]:
    """Return where a node begins on the trunk's clock, and what its parent's count lacks."""
    parent = above[of]
    at = parent.begins[0] - parent.added if at_tokens is None else at_tokens
    return parent.added + at, parent.added
