"""A listed study as rows: what is published of each point, planned and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from command.study.listed_points import OUT_OF_MEMORY, ListedStudy, Quote
from command.study.schema import Value
from components.report import numbers
from components.report.tables import Grid, TableRow


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point; ``fits`` is the plan's word, ``why`` what speaks against plan or run."""

    point: Mapping[str, Value]
    planned: float | None
    fits: bool
    measured: float | None
    why: str
    quotes: tuple[Quote, ...]

    def deviation(self, quote: Quote) -> float | None:
        """Set the plan beside a published figure, as a fraction of it."""
        if self.planned is None or isinstance(quote.value, str):
            return None
        return self.planned / quote.value - 1


def relative(study: ListedStudy, tried: Sequence[PointResult]) -> list[PointResult]:
    """Divide each figure by that of the baseline, if the study names one."""
    base = next((one for one in tried if one.point == study.base), None)
    if base is None:
        return list(tried)
    return [
        replace(
            one,
            planned=_ratio(one.planned, base.planned),
            measured=_ratio(one.measured, base.measured),
        )
        for one in tried
    ]


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def median_deviation(tried: Sequence[PointResult]) -> float | None:
    """Return the median of the absolute deviations of the plans, if there are any."""
    every = (one.deviation(quote) for one in tried for quote in one.quotes)
    found = [abs(deviation) for deviation in every if deviation is not None]
    return median(found) if found else None


def summary(tried: Sequence[PointResult]) -> str:
    """Say in a line how far plans and publication are apart, and what of it cannot be said."""
    quotes = [(one, quote) for one in tried for quote in one.quotes]
    compared = [one for one, quote in quotes if one.deviation(quote) is not None]
    parts = [f"{len(tried)} points, {len(quotes)} published figures"]
    middle = median_deviation(tried)
    if middle is not None:
        parts.append(f"plans off by {middle:.1%} at the median of {len(compared)}")
    for name, out in (("ran", False), ("ran out of memory", True)):
        group = [one for one, quote in quotes if (quote.value == OUT_OF_MEMORY) == out]
        without = sum(not one.fits for one in group)
        if without:
            parts.append(
                f"{without} of {len(group)} that {name} do not fit by plan, or are refused"
            )
    return "; ".join(parts)


def study_grid(study: ListedStudy, tried: Sequence[PointResult]) -> Grid:
    """Lay out a row for each published figure; a point without one has a row too."""
    keys = differing(study)
    runs = any(one.measured is not None for one in tried)
    noted = any(one.why for one in tried)
    columns = (
        *(key.rpartition(".")[2] for key in keys),
        *("published", "planned", "off by"),
        *(("measured",) if runs else ()),
        *(("note",) if noted else ()),
        "place",
    )
    rows = []
    for one in tried:
        shown = study.shown(one.point)
        for quote in one.quotes or (None,):
            cells = (
                *(numbers.exact(shown[key]) for key in keys),
                _written(quote.value if quote else None),
                _written(one.planned),
                _percent(one.deviation(quote) if quote else None),
                *((_written(one.measured),) if runs else ()),
                *((one.why,) if noted else ()),
                quote.place if quote else "",
            )
            rows.append(TableRow(cells=cells))
    return Grid(columns=columns, rows=tuple(rows))


def differing(study: ListedStudy) -> list[str]:
    """Name the keys that tell points apart; of two that tell the same, the figure's."""
    shown = [study.shown(point) for point in study.points]
    drawn = [*study.figure.x, *study.figure.series]
    told: dict[tuple[int, ...], str] = {}
    for key in sorted(shown[0], key=lambda key: key not in drawn):
        values = [one[key] for one in shown]
        told.setdefault(tuple(values.index(value) for value in values), key)
    told.pop(tuple(0 for _ in shown), None)
    return [key for key in shown[0] if key in told.values()] or drawn


def _written(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return numbers.ABSENT if value is None else numbers.measured(value)


def _percent(value: float | None) -> str:
    return numbers.ABSENT if value is None else f"{value:+.1%}"
