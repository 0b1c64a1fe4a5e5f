"""What a run was trained on: its data card's summary, and the mixture promised and drawn.

The card lies beside the data, which may be elsewhere by now, or gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.report import data_page, numbers
from components.report.cards import Card
from components.report.outcome import ReportEntry, Tree
from components.report.tables import Grid, TableRow
from components.run.ownership import is_own
from components.run.records import DataRecord, read_checked, read_record
from components.run.reported import DataCard

_MEASURES = ("promised", "drawn", "times read")


def mixture_grid(entries: Sequence[ReportEntry]) -> Grid:
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
        rows.append(TableRow(cells=(name, *(cell for three in cells for cell in three))))
    return Grid(columns=("source", *heads), rows=tuple(rows))


def _cells(source: Tree | None) -> tuple[str, ...]:
    if source is None:
        return (numbers.ABSENT,) * len(_MEASURES)
    shares = (f"{source[key]:.3%}" for key in ("promised_share", "share"))
    return (*shares, f"{source['epochs']:.2f}")


_CARD = "card.json"


@dataclass(frozen=True, kw_only=True)
class DataCardSummary:
    """The prepared data of one run: its key, and the card's figures where there is a card."""

    label: str
    folder: str
    key: str
    cards: tuple[Card, ...]
    sources: Grid


def data_sections(entries: Sequence[ReportEntry]) -> tuple[DataCardSummary, ...]:
    """Summarize each prepared folder once, however many of the runs read it."""
    sections: dict[str, DataCardSummary] = {}
    for entry in entries:
        file = entry.run.folder / "data.json"
        if file.exists():
            said = read_record(file, DataRecord)
            looks = _is_looked_at(file, Path(said.folder))
            sections.setdefault(said.key, _section(entry.label, said, looks=looks))
    return tuple(sections.values())


def _is_looked_at(file: Path, place: Path) -> bool:
    """Look where this user's own run says; where another's does, below the working folder."""
    return is_own(file) or place.resolve().is_relative_to(Path.cwd().resolve())


def _section(label: str, said: DataRecord, *, looks: bool) -> DataCardSummary:
    folder = Path(said.folder)
    card = _card(folder / _CARD) if looks else None
    # A folder can have been prepared again since, under the same name.
    own = card if card is not None and card["key"] == said.key else None
    return DataCardSummary(
        label=label,
        folder=folder.name,  # not its whole path, which names people
        key=said.key,
        cards=data_page.key_figures(own) if own else (),
        sources=data_page.sources_grid(own["sources"]) if own else Grid(columns=(), rows=()),
    )


def _card(file: Path) -> dict[str, Any] | None:
    try:
        return read_checked(file, DataCard)
    except RecipeError:  # no card, or half of one: the report stands without it
        return None
