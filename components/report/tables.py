"""Tables and key figures of a report as plain text. The page and the terminal format them."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rich.table import Table

from components.config.key_groups import without_profile
from components.report import numbers
from components.report.outcome import JsonTree, ReportEntry, RunOutcome, flatten_tree

# Prose and sources. If they differ, the names of the recipes already differ.
_NOT_OVERRIDES = ("description", "published", "assumed")
_WHOLE_KEY = 48  # characters of a key that a terminal shows in one line
_MOST_KEYS = 4  # differing keys in one cell
Cells = tuple[str, ...]
RowItem = TypeVar("RowItem")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of text cells with a heading for each column."""

    columns: Cells = ()
    rows: Sequence[Cells] = ()
    text_columns: int = 1  # number of columns on the left that are not numbers
    alike: Sequence[tuple[str, str]] = ()  # values common to all runs, stated once
    title: str = ""
    kind: str = ""  # its class in page.css
    fold: str = ""  # name of the rows, if a page folds a long table
    cut: int = 0  # rows on a terminal, plus the last; 0 shows all
    marks: Sequence[tuple[str, str]] = ()  # a color and a character before each row
    links: Mapping[str, str] = field(default_factory=dict)  # by the first cell of a row
    first: frozenset[tuple[int, int]] = frozenset()  # row and column of highlighted cells


@dataclass(frozen=True)
class Card:
    """One figure, its name, and one or two lines of context."""

    title: str
    value: str
    notes: tuple[str, ...]
    warning: str = ""


def terminal_table(grid: Grid) -> Table:
    """Format a table for a terminal. Text columns are left-aligned, numbers right-aligned."""
    title = grid.title or None
    table = Table(
        box=None, pad_edge=False, header_style="bold", title=title, title_justify="left"
    )
    longest = max((len(row[0]) for row in grid.rows), default=0)
    for place, column in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if place < grid.text_columns else "right"
        keeps_line = place == 0 and grid.kind == "missing" and longest <= _WHOLE_KEY
        table.add_column(column, justify=justify, overflow="fold", no_wrap=keeps_line)
    is_cut = 0 < grid.cut < len(grid.rows) - 1
    for row in (*grid.rows[: grid.cut], ("…",), grid.rows[-1]) if is_cut else grid.rows:
        table.add_row(*row)
    return table


def summary_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return a table with one row per run: recipe differences and results."""
    words = _differing_words(entries)
    columns: dict[str, Callable[[ReportEntry], str]] = {
        "run": lambda entry: entry.label,
        "differs in": lambda entry: words[entry.label],
        "steps": lambda entry: numbers.format_exact(entry.outcome.steps),
        "training loss": lambda entry: numbers.format_loss(entry.outcome.training_loss),
        "held-out loss, weighted": lambda entry: _last(
            entry.outcome, entry.outcome.held_out.final
        ),
        "held-out loss, plain mean": lambda entry: _last(
            entry.outcome, entry.outcome.held_out.final_unweighted
        ),
        "tokens/s": lambda entry: numbers.format_count(entry.outcome.tokens_per_second),
        "goodput": lambda entry: numbers.format_value(
            entry.run.history.goodput.progress_fraction, ".0%"
        ),
        "status": lambda entry: entry.outcome.status,
    }
    return grid_of(entries, columns, text_columns=2, kind="summary")


def _last(out: RunOutcome, loss: float | None) -> str:
    """Format a held-out loss, with its step if the run continued after it."""
    text, step = numbers.format_loss(loss), out.held_out.step
    earlier = loss is not None and step is not None and step != out.steps
    return f"{text} at step {step:,}" if earlier else text


def _differing_words(entries: Sequence[ReportEntry]) -> dict[str, str]:
    """Describe each run's differences, by its label. Keys of the runs' commands come first."""
    differing = differing_keys(entries)
    commands = (entry.run.environment.get("command", []) for entry in entries)
    named = {str(word).partition("=")[0] for command in commands for word in command}
    keys = sorted(without_profile(differing), key=lambda key: key not in named)
    shown = keys if len(keys) <= _MOST_KEYS else keys[: _MOST_KEYS - 1]
    rest = [f"and {len(keys) - len(shown)} more keys"] if shown != keys else []
    words = {}
    for place, entry in enumerate(entries):
        texts = [f"{key}={differing[key][place]}" for key in shown]
        words[entry.label] = ", ".join([*texts, *rest]) or numbers.ABSENT
    return words


def differing_keys(entries: Sequence[ReportEntry]) -> dict[str, Cells]:
    """Map each dotted key that differs between the runs' recipes to its value in each run."""
    recipes = [entry.run.recipe.items() for entry in entries]
    trees = [
        flatten_tree({k: v for k, v in recipe if k not in _NOT_OVERRIDES}) for recipe in recipes
    ]
    return {key: cells for key, cells in _side_by_side(trees).items() if len(set(cells)) > 1}


def _side_by_side(trees: Sequence[JsonTree]) -> dict[str, Cells]:
    def format_cell(key: str, value: object) -> str:
        if key.rpartition(".")[2] == "command" and isinstance(value, list):
            return shlex.join(str(part) for part in value)
        return "{}" if isinstance(value, Mapping) else numbers.format_exact(value)

    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: tuple(format_cell(key, tree.get(key)) for tree in trees) for key in keys}


def environment_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of each run's command, commit, versions, fingerprint and start."""
    trees = []
    for entry in entries:
        tree = flatten_tree(entry.run.environment)
        tree |= {"recipe fingerprint": entry.run.derived.get("fingerprint")}
        trees.append(tree | ({"start": start} if (start := entry.run.start_text) else {}))
    titled = ((key.replace("_", " "), cells) for key, cells in _side_by_side(trees).items())
    cells = {title.removeprefix("versions."): values for title, values in titled}
    return _by_run(entries, cells, "environment")


def flops_grid(entries: Sequence[ReportEntry]) -> Grid:
    """Return the table of FLOP per token and rates, for each attention convention."""
    conventions = dict.fromkeys(c for e in entries for c in e.run.derived["flops_per_token"])

    def list_quantities(entry: ReportEntry) -> dict[str, str]:
        rates, ranks = entry.outcome.flops_per_second, entry.run.derived["ranks"]
        titled = (
            ("one token", entry.run.derived["flops_per_token"], "FLOP"),
            ("all devices", rates, "FLOP/s"),
            ("one device", {c: value / ranks for c, value in rates.items()}, "FLOP/s"),
        )
        return {
            f"{title}, {convention} attention": numbers.format_rate(
                values.get(convention), unit
            )
            for title, values, unit in titled
            for convention in conventions
        }

    return grid_by_quantity(entries, list_quantities, "figures lines")


def grid_by_quantity(
    entries: Sequence[ReportEntry],
    quantities: Callable[[ReportEntry], dict[str, str]],
    kind: str = "figures",
) -> Grid:
    """Return a table with one row per quantity of the runs and one column per run."""
    columns = [quantities(entry) for entry in entries]
    cells = {name: tuple(column[name] for column in columns) for name in columns[0]}
    return _by_run(entries, cells, kind)


def _by_run(entries: Sequence[ReportEntry], cells: Mapping[str, Cells], kind: str) -> Grid:
    """Return a row for each quantity that differs between runs; state common values once."""
    agreed = {n for n, values in cells.items() if len(entries) > 1 and len(set(values)) == 1}
    alike = [(name, cells[name][0]) for name in cells if name in agreed]
    rows = [(name, *values) for name, values in cells.items() if name not in agreed]
    columns = ("", *column_labels(entries))
    return Grid(columns=columns, rows=rows, alike=alike, kind=kind)


def grid_of(
    items: Iterable[RowItem], columns: Mapping[str, Callable[[RowItem], str]], **options: Any
) -> Grid:
    """Return a table with one row per item. Each column formats its own cell."""
    rows = [tuple(write(item) for write in columns.values()) for item in items]
    return Grid(columns=tuple(columns), rows=rows, **options)


def grid_by_name(
    head: str, items: Iterable[tuple[str, JsonTree]], columns: Mapping[str, tuple[str, str]]
) -> Grid:
    """Return a table with one row per item: its name, and the formatted values of some keys.

    ``columns`` maps each heading to a key and its format.
    """
    rows = [
        (name, *(numbers.format_value(item[key], form) for key, form in columns.values()))
        for name, item in items
    ]
    return Grid(columns=(head, *columns), rows=rows, kind="figures")


def count_incidents(entry: ReportEntry) -> dict[str, str]:
    """Count the incidents of a run: kills, resumes, losses that are not finite."""
    history = entry.run.history
    resumes = history.events_of("resume")
    diverged = sum(not math.isfinite(loss) for loss in history.steps.copy_column("loss"))
    places = ", ".join(f"step {event.step:,}" for event in resumes)
    return {
        "results.json": "written" if entry.run.results else "absent: killed, or still training",
        "checkpoints written": numbers.format_exact(len(history.events_of("checkpoint"))),
        "resumes": f"{len(resumes)}" + (f", from {places}" if places else ""),
        "steps computed again": numbers.format_exact(history.repeated_steps),
        "half-written lines, ignored": numbers.format_exact(history.half_written_lines),
        "steps with a non-finite loss": numbers.format_exact(diverged),
    }


def column_labels(entries: Sequence[ReportEntry]) -> Cells:
    """Return the heading of each run's column. A single run needs no name."""
    return tuple(e.label for e in entries) if len(entries) > 1 else ("this run",)


def name_runs(labels: Sequence[str], entries: Sequence[ReportEntry]) -> str:
    """Name the runs of a report that share a property."""
    return "all runs" if len(labels) == len(entries) else ", ".join(labels)


def build_run_column(
    entries: Sequence[ReportEntry],
) -> tuple[Cells, list[tuple[ReportEntry, Cells]]]:
    """Return heading and cells of the column that names the run. A single run has none."""
    if len(entries) == 1:
        return (), [(entries[0], ())]
    return ("run",), [(entry, (entry.label,)) for entry in entries]


def key_figures(entry: ReportEntry) -> tuple[Card, ...]:
    """Return the cards that a reader needs first: quality, amount, speed, size."""
    out, derived = entry.outcome, entry.run.derived
    budget, ranks = entry.run.recipe["budget"]["total_tokens"], derived["ranks"]
    total, active = derived["parameters"]["total"], derived["parameters"].get("active")
    devices = f"{ranks:,} rank{'s' * (ranks > 1)} on {out.device or 'an unknown device'}"
    per_device = numbers.format_count(out.tokens_per_second_per_device)
    took = () if out.seconds is None else (f"in {numbers.format_duration(out.seconds)}",)
    is_sparse = active not in {None, total}
    in_use = (f"{numbers.format_count(active)} active per token",) if is_sparse else ()
    training = (f"of step {out.steps:,}", "nats per token, as all losses here")
    part = f"{out.tokens / budget:.0%} of a budget of {budget:,}"
    rate = ("median of the steps", f"{per_device} per device; {devices}")
    return (
        Card("training loss", numbers.format_loss(out.training_loss), training),
        Card("tokens", numbers.format_count(out.tokens), (part,)),
        Card("tokens per second", numbers.format_count(out.tokens_per_second), rate),
        Card("steps", f"{out.steps:,}", (f"of {derived['steps']:,} planned", *took)),
        Card("parameters", numbers.format_count(total), (f"{total:,}", *in_use)),
    )
