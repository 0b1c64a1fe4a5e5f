"""Where the time of profiled steps went, as tables."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from components.errors import RecipeError
from components.report import numbers
from components.report.outcome import Entry
from components.report.run_folder import Tree
from components.report.tables import Grid, Row, column_labels

_PARTS = ("part", "a step", "share", "forward", "backward", "recomputed")
_PRODUCTS = ("products of", "FLOP a step", "reached", "FLOP/byte", "limit", "of the limit")
_WAITS = ("call", "part", "direction", "times a step", "a step", "line")
_LEAD = ("run", "rank")
Cells = tuple[str, ...]
Found = Sequence[tuple[Cells, Tree]]  # profiles, each behind the cells that lead its rows


def profile_grids(entries: Sequence[Entry]) -> dict[str, Grid]:
    """Lay out the profiles of all runs, rank by rank.

    Raises:
        RecipeError: a profile that is no JSON.
    """
    found = [
        ((label, str(tree["rank"])), tree)
        for entry, label in zip(entries, column_labels(entries), strict=True)
        for tree in read_profiles(entry.run.folder)
    ]
    return {
        "profile_parts": parts_grid(found, lead=_LEAD),
        "profile_products": products_grid(found, lead=_LEAD),
        "profile_waits": waits_grid(found, lead=_LEAD),
    }


def read_profiles(run: Path) -> list[Tree]:
    """Read the profiles of a run folder, in the order of ranks."""
    return sorted(_profiles(run), key=lambda tree: int(tree["rank"]))


def _profiles(run: Path) -> Iterator[Tree]:
    for file in (run / "profile").glob("rank-*[0-9].json"):
        try:
            yield json.loads(file.read_text("utf-8"))
        except ValueError as error:
            remedy = "delete it and profile again"
            raise RecipeError(str(file), f"is no JSON: {error}", remedy) from None


def parts_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out a row a part that took any time, and their sum."""
    rows = [Row(cells=(*before, *cells)) for before, tree in found for cells in _parts(tree)]
    return Grid(columns=(*lead, *_PARTS), rows=tuple(rows))


def products_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out what products and attention reach, beside what the machine allows them."""
    rows = [
        Row(cells=(*before, part, *_reached(figures)))
        for before, tree in found
        for part, figures in tree["products"].items()
    ]
    return Grid(columns=(*lead, *_PRODUCTS), rows=tuple(rows))


def waits_grid(found: Found, *, lead: Cells) -> Grid:
    """Lay out what makes the host wait for its device, or would on a device."""
    rows = [
        Row(cells=(*before, *_wait(wait))) for before, tree in found for wait in tree["waits"]
    ]
    return Grid(columns=(*lead, *_WAITS), rows=tuple(rows))


def _parts(tree: Tree) -> Iterator[Cells]:
    whole = tree["step_seconds"]
    for part, times in tree["parts"].items():
        if times["seconds"]:
            directions = (times.get(f"{name}_seconds") for name in _PARTS[3:])
            share = f"{times['seconds'] / whole:.1%}"
            yield part, _span(times["seconds"]), share, *map(_span, directions)
    yield "step", _span(whole), "100.0%", *("",) * 3


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
    """Write what is a part of a step."""
    if not seconds:
        return ""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
