"""Page of a tree of runs: the origin and state of each node, and all curves in one chart.

Tokens are on the root's clock. A run that started from weights only counts its own tokens from
0, so the report adds its parent's tokens.
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
    """Node of the page. ``of`` is None for nodes directly below the root run.

    ``begins`` are tokens on the root's clock; a repeated evaluation has several. ``ends`` is
    the end of a run's budget. ``added`` is the difference to the run's own token count.
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


def write_tree(root_run: PlacedNode, nodes: Sequence[PlacedNode], destination: Path) -> Path:
    """Write the page of a root run and its nodes. Each node follows its parent."""
    check_destination(destination)
    run_nodes = [root_run, *(node for node in nodes if node.has_run_folder)]
    entries = load_entries([node.folder for node in run_nodes])
    named = [replace(e, label=node.name) for e, node in zip(entries, run_nodes, strict=True)]
    added = {node.name: node.added for node in run_nodes}
    label = "The tree of runs over tokens; the table below contains the numbers"
    tree = TreeParts(
        grid=tree_grid([root_run, *nodes], named),
        chart=Figure("tree", lambda: tree_figure(root_run, nodes, named), label),
        moved=tuple(_moved(entry, added[entry.label]) for entry in named),
        added=tuple(added.values()),
    )
    document = report_document(named, own_pages(named, destination), tree)
    return write_document(document, destination)


def _moved(entry: ReportEntry, tokens: int) -> ReportEntry:
    """Add ``tokens`` to the token counts of a run's curves."""
    if not tokens:
        return entry
    history = entry.run.history
    moved = replace(
        history,
        steps=StepTable(history.steps.values, tokens),
        held_out=_later(history.held_out, tokens),
        events=_later(history.events, tokens),
    )
    return replace(entry, run=replace(entry.run, history=moved))


def _later(records: Sequence[Counted], tokens: int) -> tuple[Counted, ...]:
    return tuple(
        record.model_copy(update={"tokens": record.tokens + tokens}) for record in records
    )


def tree_grid(nodes: Sequence[PlacedNode], entries: Sequence[ReportEntry]) -> Grid:
    """Return a table with one row per node, the root first, with the held-out loss of runs."""
    outcomes = {entry.label: entry.outcome for entry in entries}
    rows = []
    for node in nodes:
        outcome = outcomes.get(node.name)
        loss = None
        if outcome is not None:
            loss = outcome.held_out.final or outcome.held_out.final_unweighted
        when = ", ".join(numbers.format_exact(tokens) for tokens in node.begins[:3])
        more = f" and {len(node.begins) - 3} more" if len(node.begins) > 3 else ""
        reached = numbers.ABSENT
        if outcome is not None and node.kind == "run":
            reached = numbers.format_exact(node.added + outcome.tokens)
        held_out = numbers.ABSENT if loss is None else f"{loss:.4f}"
        above = numbers.ABSENT if node is nodes[0] else node.of or nodes[0].name
        rows.append((node.name, node.kind, above, when + more, reached, node.state, held_out))
    columns = ("node", "kind", "of", "after tokens", "reached", "state", "held-out loss")
    return Grid(columns=columns, rows=rows)


def tree_figure(
    root_run: PlacedNode, nodes: Sequence[PlacedNode], entries: Sequence[ReportEntry]
) -> figures.PlotlyFigure:
    """Draw each run as a line over tokens below its parent, and other nodes as marks."""
    all_nodes = [root_run, *nodes]
    rows = {node.name: row for row, node in enumerate(all_nodes)}
    reached = {entry.label: entry.outcome.tokens for entry in entries}
    colours = {entry.label: figures.choose_color(place) for place, entry in enumerate(entries)}
    figure = figures.empty_figure("tokens", None, height=90 + 34 * len(all_nodes))
    figure.update_layout(showlegend=False)
    figure.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=[f"{node.name}, {node.state}" for node in all_nodes],
        autorange="reversed",
    )
    for node in all_nodes:
        row, colour = rows[node.name], colours.get(node.name, figures.choose_color(0))
        for begin in node.begins if node is not root_run else ():
            above = rows[node.of or root_run.name]
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


def place_node(
    of: str | None, at_tokens: int | None, above: Mapping[str | None, PlacedNode]
) -> tuple[int, int]:
    """Return a node's start on the root's clock, and the offset of its parent's count."""
    parent = above[of]
    at = parent.begins[0] - parent.added if at_tokens is None else at_tokens
    return parent.added + at, parent.added
