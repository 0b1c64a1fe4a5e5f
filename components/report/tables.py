"""The tables of the report, as plain text cells: the page and the terminal only set them.

A table has a row a quantity and a column a run, except the summary, which has a row a run.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from components.config.key_groups import without_profile
from components.report import numbers
from components.report.outcome import ReportEntry, Tree, flat, load_entries, non_finite_steps

# Prose and sources: when they differ, the recipes' names say so already.
_NOT_OVERRIDES = ("why", "published", "assumed")
_ONE_RUN = "this run"
_SUMMARY_COLUMNS = (
    *("run", "differs in", "steps"),
    *("training loss", "held-out loss", "tokens/s", "goodput", "status"),
)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row of text cells; ``differs`` marks one whose runs do not agree."""

    cells: tuple[str, ...]
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table with a heading for each column; the first ``text_columns`` are no numbers."""

    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    text_columns: int = 1


def summary_table(runs: Sequence[Path]) -> Table:
    """Build the terminal's table of several runs, one row each.

    Raises:
        RecipeError: no folder is given, or one of them is no run.
    """
    return terminal_table(summary_grid(load_entries(runs)))


def terminal_table(grid: Grid) -> Table:
    """Set a grid for a terminal: text on the left of its columns, numbers on the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if place < grid.text_columns else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for row in grid.rows:
        table.add_row(*row.cells)
    return table


def summary_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out one row a run: what differs in its recipe, and what came out."""
    differing = differing_keys(entries)
    shown = without_profile(differing)
    rows = []
    for place, entry in enumerate(entries):
        out = entry.outcome
        own = ", ".join(f"{key}={differing[key][place]}" for key in shown)
        cells = (
            entry.label,
            own or numbers.ABSENT,
            numbers.exact(out.steps),
            numbers.loss(out.training_loss),
            numbers.loss(out.held_out_final),
            numbers.count(out.tokens_per_second),
            _goodput(entry),
            out.status,
        )
        rows.append(TableRow(cells=cells))
    return Grid(columns=_SUMMARY_COLUMNS, rows=tuple(rows), text_columns=2)


def _goodput(entry: ReportEntry) -> str:
    part = entry.run.journal.goodput.fraction
    return numbers.ABSENT if part is None else f"{part:.0%}"


def differing_keys(entries: Sequence[ReportEntry]) -> dict[str, tuple[str, ...]]:
    """Map each dotted key on which the runs' recipes disagree to its value in each run."""
    trees = [flat(_overridable(entry.run.recipe)) for entry in entries]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    cells = {key: tuple(_cell(tree, key) for tree in trees) for key in keys}
    return {key: values for key, values in cells.items() if len(set(values)) > 1}


def _overridable(recipe: Tree) -> Tree:
    return {key: value for key, value in recipe.items() if key not in _NOT_OVERRIDES}


def _cell(tree: Tree, key: str) -> str:
    return _text(key, tree[key]) if key in tree else numbers.ABSENT


def _text(key: str, value: object) -> str:
    if key.rpartition(".")[2] == "command" and isinstance(value, list):
        return shlex.join(str(part) for part in value)
    if isinstance(value, Mapping):
        return "{}"
    return numbers.exact(value)


def environment_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out command, commit and versions of each run, and the recipe's fingerprint."""
    hashes = [{"recipe fingerprint": e.run.derived.get("fingerprint")} for e in entries]
    own = zip(entries, hashes, strict=True)
    trees = [flat(entry.run.environment) | fingerprint for entry, fingerprint in own]
    rows = []
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = tuple(_cell(tree, key) for tree in trees)
        label = key.replace("_", " ").removeprefix("versions.")
        rows.append(TableRow(cells=(label, *values), differs=len(set(values)) > 1))
    return Grid(columns=("", *column_labels(entries)), rows=tuple(rows))


def flops_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out the FLOP of a token and the rates, each under every convention of attention."""
    named = (convention for e in entries for convention in e.run.derived["flops_per_token"])
    conventions = tuple(dict.fromkeys(named))
    rows = []
    for entry in entries:
        name = f"{entry.label}: " if len(entries) > 1 else ""
        rates, ranks = entry.outcome.flops_per_second, entry.run.derived["ranks"]
        per_device = {c: value / ranks for c, value in rates.items()}
        for title, values, unit in (
            ("one token", entry.run.derived["flops_per_token"], "FLOP"),
            ("all devices", rates, "FLOP/s"),
            ("one device", per_device, "FLOP/s"),
        ):
            cells = (numbers.rate(values.get(c), unit) for c in conventions)
            rows.append(TableRow(cells=(f"{name}{title}", *cells)))
    return Grid(columns=("", *(f"{c} attention" for c in conventions)), rows=tuple(rows))


def incidents_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out what befell each run: kills, resumes, losses that are no number."""
    columns = [_incidents(entry) for entry in entries]
    rows = [
        TableRow(cells=(title, *(column[title] for column in columns))) for title in columns[0]
    ]
    return Grid(columns=("", *column_labels(entries)), rows=tuple(rows))


def _incidents(entry: ReportEntry) -> dict[str, str]:
    journal = entry.run.journal
    resumes = journal.events_of("resume")
    places = ", ".join(f"step {event.step:,}" for event in resumes)
    return {
        "results.json": "written" if entry.run.results else "absent: killed, or still training",
        "checkpoints written": numbers.exact(len(journal.events_of("checkpoint"))),
        "resumes": f"{len(resumes)}" + (f", from {places}" if places else ""),
        "steps computed again": numbers.exact(journal.repeated_steps),
        "half-written journal lines, ignored": numbers.exact(journal.half_written_lines),
        "steps whose loss is no number": numbers.exact(non_finite_steps(journal)),
    }


def column_labels(entries: Sequence[ReportEntry]) -> tuple[str, ...]:
    """Head the column of each run; one run alone needs no name."""
    return tuple(e.label for e in entries) if len(entries) > 1 else (_ONE_RUN,)


def row_labels(entries: Sequence[ReportEntry]) -> tuple[tuple[str, ...], ...]:
    """Give the cells that say of which run a row is; one run alone needs no such column."""
    return tuple((e.label,) if len(entries) > 1 else () for e in entries)


def run_column(entries: Sequence[ReportEntry]) -> tuple[str, ...]:
    """Head the column of `row_labels`, if there is one."""
    return ("run",) if len(entries) > 1 else ()
