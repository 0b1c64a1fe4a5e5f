"""The mixture that a run promised beside the one that it drew, source by source."""

from collections.abc import Sequence

from components.report import numbers
from components.report.outcome import Entry
from components.report.run_folder import Tree
from components.report.tables import Grid, Row

_MEASURES = ("promised", "drawn", "times read")


def mixture_grid(entries: Sequence[Entry]) -> Grid:
    """Lay out a row a source; no rows where no run has written its results."""
    drawn: list[Tree] = [(entry.run.results or {}).get("mixture", {}) for entry in entries]
    heads = (
        f"{entry.label}: {measure}" if len(entries) > 1 else measure
        for entry in entries
        for measure in _MEASURES
    )
    rows = []
    for name in dict.fromkeys(name for one in drawn for name in one):
        cells = [_cells(one.get(name)) for one in drawn]
        rows.append(Row(cells=(name, *(cell for three in cells for cell in three))))
    return Grid(columns=("source", *heads), rows=tuple(rows))


def _cells(source: Tree | None) -> tuple[str, ...]:
    if source is None:
        return (numbers.ABSENT,) * len(_MEASURES)
    shares = (f"{source[key]:.3%}" for key in ("promised_share", "share"))
    return (*shares, f"{source['epochs']:.2f}")
