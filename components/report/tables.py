"""Tables and key figures of a report, as plain text; the page and the terminal set them."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from rich.table import Table

from components.config.key_groups import without_profile
from components.report import numbers
from components.report.outcome import ReportEntry, RunOutcome, Tree, flat

# Prose and sources: when they differ, the recipes' names say so already.
_NOT_OVERRIDES = ("why", "published", "assumed")
_SUMMARY_COLUMNS = (
    *("run", "differs in", "steps"),
    *("training loss", "held-out loss, weighted", "held-out loss, plain mean"),
    *("tokens/s", "goodput", "status"),
)
_WHOLE_KEY = 48  # characters of a key that a terminal shows in one line
_MOST_KEYS = 4  # of those that differ, in one cell
Cells = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of text cells with a heading for each column."""

    columns: Cells = ()
    rows: Sequence[Cells] = ()
    text_columns: int = 1  # so many at the left are no numbers
    alike: Sequence[tuple[str, str]] = ()  # what all runs agree in, and so is said once
    title: str = ""
    kind: str = ""  # its class in page.css
    fold: str = ""  # what its rows are, where a page folds a long table
    cut: int = 0  # so many rows and the last are enough on a terminal
    marks: Sequence[tuple[str, str]] = ()  # a colour and a character before each row
    links: Mapping[str, str] = field(default_factory=dict)  # by the first cell of a row
    first: frozenset[tuple[int, int]] = frozenset()  # row and column of cells that stand out


@dataclass(frozen=True)
class Card:
    """One figure, its name, and a line or two that put it into proportion."""

    title: str
    value: str
    notes: tuple[str, ...]
    warning: str = ""


def terminal_table(grid: Grid) -> Table:
    """Set a grid for a terminal: text on the left of its columns, numbers on the right."""
    title = grid.title or None
    table = Table(
        box=None, pad_edge=False, header_style="bold", title=title, title_justify="left"
    )
    for place, column in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if place < grid.text_columns else "right"
        keeps_line = place == 0 and grid.kind == "missing" and _longest(grid) <= _WHOLE_KEY
        table.add_column(column, justify=justify, overflow="fold", no_wrap=keeps_line)
    is_cut = 0 < grid.cut < len(grid.rows) - 1
    for row in (*grid.rows[: grid.cut], ("…",), grid.rows[-1]) if is_cut else grid.rows:
        table.add_row(*row)
    return table


def _longest(grid: Grid) -> int:
    return max((len(row[0]) for row in grid.rows), default=0)


def summary_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out one row a run: what differs in its recipe, and what came out."""
    differing = _differing_words(entries)
    rows = [
        (
            entry.label,
            differing[place],
            numbers.exact(entry.outcome.steps),
            numbers.loss(entry.outcome.training_loss),
            _last(entry.outcome, entry.outcome.held_out.final),
            _last(entry.outcome, entry.outcome.held_out.final_unweighted),
            numbers.count(entry.outcome.tokens_per_second),
            numbers.written(entry.run.journal.goodput.fraction, ".0%"),
            entry.outcome.status,
        )
        for place, entry in enumerate(entries)
    ]
    return Grid(columns=_SUMMARY_COLUMNS, rows=rows, text_columns=2, kind="summary")


def _last(out: RunOutcome, loss: float | None) -> str:
    """Write a held-out loss, with its step where the run went on after it."""
    step = out.held_out.step
    behind = loss is not None and step is not None and step != out.steps
    return f"{numbers.loss(loss)} at step {step:,}" if behind else numbers.loss(loss)


def _differing_words(entries: Sequence[ReportEntry]) -> list[str]:
    """Say of each run in what it differs, first the keys that the runs' commands name."""
    differing = differing_keys(entries)
    commands = (entry.run.environment.get("command", []) for entry in entries)
    named = {str(word).partition("=")[0] for command in commands for word in command}
    keys = sorted(without_profile(differing), key=lambda key: key not in named)
    shown = keys if len(keys) <= _MOST_KEYS else keys[: _MOST_KEYS - 1]
    rest = [f"and {len(keys) - len(shown)} more keys"] if shown != keys else []
    places = range(len(entries))
    words = ([*(f"{key}={differing[key][place]}" for key in shown), *rest] for place in places)
    return [", ".join(one) or numbers.ABSENT for one in words]


def differing_keys(entries: Sequence[ReportEntry]) -> dict[str, Cells]:
    """Map each dotted key on which the runs' recipes disagree to its value in each run."""
    recipes = [entry.run.recipe.items() for entry in entries]
    trees = [flat({k: v for k, v in one if k not in _NOT_OVERRIDES}) for one in recipes]
    return {key: cells for key, cells in _side_by_side(trees).items() if len(set(cells)) > 1}


def _side_by_side(trees: Sequence[Tree]) -> dict[str, Cells]:
    def text(key: str, value: object) -> str:
        if key.rpartition(".")[2] == "command" and isinstance(value, list):
            return shlex.join(str(part) for part in value)
        return "{}" if isinstance(value, Mapping) else numbers.exact(value)

    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: tuple(text(key, tree.get(key)) for tree in trees) for key in keys}


def environment_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out command, commit and versions of each run, its fingerprint and its start."""
    trees = []
    for entry in entries:
        tree = flat(entry.run.environment)
        tree |= {"recipe fingerprint": entry.run.derived.get("fingerprint")}
        trees.append(tree | ({"start": start} if (start := entry.run.start) else {}))
    titled = ((key.replace("_", " "), cells) for key, cells in _side_by_side(trees).items())
    cells = {title.removeprefix("versions."): values for title, values in titled}
    return _by_run(entries, cells, "environment")


def flops_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Lay out the FLOP of a token and the rates, each under every convention of attention.

    A run alone has a row for each of them; of several, each is a row.
    """
    conventions = dict.fromkeys(c for e in entries for c in e.run.derived["flops_per_token"])
    heads = tuple(f"{c} attention" for c in conventions)
    every = []
    for entry in entries:
        rates, ranks = entry.outcome.flops_per_second, entry.run.derived["ranks"]
        titled = (
            ("one token", entry.run.derived["flops_per_token"], "FLOP"),
            ("all devices", rates, "FLOP/s"),
            ("one device", {c: value / ranks for c, value in rates.items()}, "FLOP/s"),
        )
        every.append({
            title: tuple(numbers.rate(values.get(c), unit) for c in conventions)
            for title, values, unit in titled
        })
    if len(entries) == 1:
        rows = [(title, *cells) for title, cells in every[0].items()]
        return Grid(columns=("", *heads), rows=rows, kind="figures lines")
    columns = ("run", *(f"{title}, {head}" for title in every[0] for head in heads))
    cells = (chain.from_iterable(one.values()) for one in every)
    rows = [(entry.label, *each) for entry, each in zip(entries, cells, strict=True)]
    return Grid(columns=columns, rows=rows, kind="figures lines", fold="runs")


def grid_by_quantity(
    entries: Sequence[ReportEntry],
    quantities: Callable[[ReportEntry], dict[str, str]],
    kind: str = "figures",
) -> Grid:
    """Lay out a row a quantity, a column a run; all runs have the same quantities."""
    columns = [quantities(entry) for entry in entries]
    cells = {name: tuple(one[name] for one in columns) for name in columns[0]}
    return _by_run(entries, cells, kind)


def _by_run(entries: Sequence[ReportEntry], cells: Mapping[str, Cells], kind: str) -> Grid:
    """Give what differs a row, with a column a run; what all runs agree in is said once."""
    agreed = {n for n, values in cells.items() if len(entries) > 1 and len(set(values)) == 1}
    alike = [(name, cells[name][0]) for name in cells if name in agreed]
    rows = [(name, *values) for name, values in cells.items() if name not in agreed]
    columns = ("", *column_labels(entries))
    return Grid(columns=columns, rows=rows, alike=alike, kind=kind)


def grid_by_name(
    head: str, items: Iterable[tuple[str, Tree]], columns: Mapping[str, tuple[str, str]]
) -> Grid:
    """Lay out a row an item: its name, and by the heading of a column a key and its format."""
    rows = [
        (name, *(numbers.written(item[key], form) for key, form in columns.values()))
        for name, item in items
    ]
    return Grid(columns=(head, *columns), rows=rows, kind="figures")


def incidents(entry: ReportEntry) -> dict[str, str]:
    """List the incidents of a run: kills, resumes, losses that are no number."""
    journal = entry.run.journal
    resumes = journal.events_of("resume")
    diverged = sum(not math.isfinite(loss) for loss in journal.steps.column("loss"))
    places = ", ".join(f"step {event.step:,}" for event in resumes)
    return {
        "results.json": "written" if entry.run.results else "absent: killed, or still training",
        "checkpoints written": numbers.exact(len(journal.events_of("checkpoint"))),
        "resumes": f"{len(resumes)}" + (f", from {places}" if places else ""),
        "steps computed again": numbers.exact(journal.repeated_steps),
        "half-written journal lines, ignored": numbers.exact(journal.half_written_lines),
        "steps whose loss is no number": numbers.exact(diverged),
    }


def column_labels(entries: Sequence[ReportEntry]) -> Cells:
    """Head the column of each run; one run alone needs no name."""
    return tuple(e.label for e in entries) if len(entries) > 1 else ("this run",)


def together(labels: Sequence[str], entries: Sequence[ReportEntry]) -> str:
    """Name those runs of a report that have something in common."""
    return "all runs" if len(labels) == len(entries) else ", ".join(labels)


def labelled(entries: Sequence[ReportEntry]) -> tuple[Cells, list[tuple[ReportEntry, Cells]]]:
    """Head the column that says of which run a row is, and its cell; a run alone needs none."""
    if len(entries) == 1:
        return (), [(entries[0], ())]
    return ("run",), [(entry, (entry.label,)) for entry in entries]


def key_figures(entry: ReportEntry) -> tuple[Card, ...]:
    """Choose what a reader asks first: how good, how much, how fast, how large."""
    out, derived = entry.outcome, entry.run.derived
    budget, ranks = entry.run.recipe["budget"]["total_tokens"], derived["ranks"]
    total, active = derived["parameters"]["total"], derived["parameters"].get("active")
    devices = f"{ranks:,} rank{'s' * (ranks > 1)} on {out.device or 'an unknown device'}"
    per_device = numbers.count(out.tokens_per_second_per_device)
    took = () if out.seconds is None else (f"in {numbers.duration(out.seconds)}",)
    rests = active not in {None, total}
    in_use = (f"{numbers.count(active)} active per token",) if rests else ()
    training = (f"of step {out.steps:,}", "nats per token, as all losses here")
    part = f"{out.tokens / budget:.0%} of a budget of {budget:,}"
    rate = ("median of the steps", f"{per_device} per device; {devices}")
    return (
        Card("training loss", numbers.loss(out.training_loss), training),
        Card("tokens", numbers.count(out.tokens), (part,)),
        Card("tokens per second", numbers.count(out.tokens_per_second), rate),
        Card("steps", f"{out.steps:,}", (f"of {derived['steps']:,} planned", *took)),
        Card("parameters", numbers.count(total), (f"{total:,}", *in_use)),
    )
