"""Where the time of profiled steps went, as tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from components.report import numbers
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Grid, TableRow, row_labels, run_column
from components.run.records import read_checked
from components.run.reported import Profile

_DIRECTIONS = ("forward", "backward", "recomputed")
_PARTS = ("part", "a step", "share", *_DIRECTIONS)
_PRODUCTS = ("products of", "FLOP a step", "reached", "FLOP/byte", "limit", "of the limit")
_WAITS = ("call", "part", "direction", "times a step", "a step", "line")
Cells = tuple[str, ...]
Found = Sequence[tuple[Cells, Tree]]  # profiles, each behind the cells that lead its rows


def profile_grids(entries: Sequence[ReportEntry]) -> dict[str, Grid]:
    """Lay out the profiles of all runs, rank by rank.

    Raises:
        RecipeError: a profile that cannot be read.
    """
    found = [
        ((*label, str(tree["rank"])), tree)
        for entry, label in zip(entries, row_labels(entries), strict=True)
        for tree in read_profiles(entry.run.folder)
    ]
    lead = (*run_column(entries), "rank")
    return {
        "profile_parts": parts_grid(found, lead=lead),
        "profile_products": products_grid(found, lead=lead),
        "profile_waits": waits_grid(found, lead=lead),
    }


def read_profiles(run: Path) -> list[Tree]:
    """Read the profiles of a run folder, in the order of ranks.

    Raises:
        RecipeError: one of them cannot be read.
    """
    files = (run / "profile").glob("rank-*[0-9].json")
    trees = [
        read_checked(file, Profile, remedy="delete it and profile again") for file in files
    ]
    return sorted(trees, key=lambda tree: int(tree["rank"]))


def parts_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out a row a part that took any time, and their sum."""
    rows = [
        TableRow(cells=(*before, *cells)) for before, tree in found for cells in _parts(tree)
    ]
    return _grid(lead, _PARTS, rows)


def products_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out what products and attention reach, beside what the machine allows them."""
    rows = [
        TableRow(cells=(*before, part, *_reached(figures)))
        for before, tree in found
        for part, figures in tree["products"].items()
    ]
    return _grid(lead, _PRODUCTS, rows)


def waits_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out what makes the host wait for its device, or would on a device."""
    rows = [
        TableRow(cells=(*before, *_wait(wait)))
        for before, tree in found
        for wait in tree["waits"]
    ]
    return _grid(lead, _WAITS, rows, text_columns=3)


def _grid(lead: Cells, own: Cells, rows: list[TableRow], *, text_columns: int = 1) -> Grid:
    """Head the rows; ``text_columns`` are those of ``own``."""
    columns = (*lead, *own)
    return Grid(columns=columns, rows=tuple(rows), text_columns=len(lead) + text_columns)


def _parts(tree: Tree) -> Iterator[Cells]:
    whole = tree["step_seconds"]
    for part, times in tree["parts"].items():
        if times["seconds"]:
            directions = (times.get(f"{name}_seconds") for name in _DIRECTIONS)
            share = f"{times['seconds'] / whole:.1%}"
            yield part, _span(times["seconds"]), share, *map(_span, directions)
    yield "step", _span(whole), "100.0%", *("",) * len(_DIRECTIONS)


def _reached(figures: Tree) -> Cells:
    limit, part = figures.get("limit_flops_per_second"), figures.get("limit_fraction")
    return (
        numbers.rate(figures["flops"], "FLOP"),
        numbers.rate(figures["flops_per_second"], "FLOP/s"),
        numbers.measured(figures["flops_per_byte"]),
        numbers.rate(limit, "FLOP/s"),
        numbers.ABSENT if part is None else f"{part:.1%}",
    )


def _wait(wait: Tree) -> Cells:
    times = f"{wait['times']:.3g}"
    named = (wait["call"], wait["part"], wait["direction"])
    return *named, times, _span(wait["seconds"]), wait["line"]


def _span(seconds: float | None) -> str:
    """Write a part of a step; a cell stays empty where there is none."""
    return numbers.brief(seconds) if seconds else ""
