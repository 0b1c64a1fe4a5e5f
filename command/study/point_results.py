"""Results of a study's points, and the table that compares them with what is published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from command.study.schema import OUT_OF_MEMORY, ListedStudy, Point, Quote, as_scalar
from components.report import numbers
from components.report.tables import Grid


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point; ``fits`` is the plan's word, ``why`` what speaks against plan or run."""

    point: Point
    planned: float | None
    fits: bool
    measured: float | None
    why: str
    quotes: tuple[Quote, ...]
    columns: Mapping[str, float | None] = field(default_factory=dict)

    def deviation(self, quote: Quote) -> float | None:
        """Set the plan beside a published figure, as a fraction of it."""
        if self.planned is None or isinstance(quote.value, str):
            return None
        return self.planned / quote.value - 1


def relative(study: ListedStudy, tried: Sequence[PointResult]) -> list[PointResult]:
    """Divide each figure by that of its baseline, if the study names one."""
    if not study.baseline:
        return list(tried)
    found = []
    for one in tried:
        (base,) = (other for other in tried if other.point == study.base(one.point))
        planned = divide_figures(one.planned, base.planned)
        measured = divide_figures(one.measured, base.measured)
        found.append(replace(one, planned=planned, measured=measured))
    return found


def divide_figures(value: float | None, base: float | None) -> float | None:
    """Return ``value`` over ``base``; None if either is missing, or ``base`` is 0."""
    return None if value is None or not base else value / base


def median_deviation(tried: Sequence[PointResult]) -> float | None:
    """Return the median of the absolute deviations of the plans, if there are any."""
    every = (one.deviation(quote) for one in tried for quote in one.quotes)
    found = [abs(deviation) for deviation in every if deviation is not None]
    return median(found) if found else None


def summary(tried: Sequence[PointResult]) -> str:
    """Give in a line how far plans and publication are apart, and what of it cannot be said."""
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
            count = f"{without} of {len(group)}"
            parts.append(f"{count} that {name} do not fit by plan, or are refused")
    return "; ".join(parts)


def study_grid(study: ListedStudy, tried: Sequence[PointResult]) -> Grid:
    """Lay out a row for each published figure; a point without one has a row too."""
    keys = _differing(study)
    planned = study.objective.planned is not None
    measured = any(one.measured is not None for one in tried)
    quoted = any(one.quotes for one in tried)
    noted = any(one.why for one in tried)
    columns = (
        *(key.rpartition(".")[2] for key in keys),
        *(("published",) * quoted),
        *(("planned",) * planned),
        *(("off by",) * (quoted and planned)),
        *(("measured",) * measured),
        *study.columns,
        *(("note",) * noted),
        *(("place",) * quoted),
    )
    rows = []
    for one in tried:
        shown = study.shown(one.point)
        for quote in one.quotes or (None,):
            rows.append((
                *(numbers.exact(as_scalar(shown[key])) for key in keys),
                *((_written(quote.value if quote else None),) * quoted),
                *((_written(one.planned),) * planned),
                *((_deviation(one, quote),) * (quoted and planned)),
                *((_written(one.measured),) * measured),
                *(_short(one.columns.get(name)) for name in study.columns),
                *((one.why,) * noted),
                *((quote.place if quote else "",) * quoted),
            ))
    return Grid(columns=columns, rows=rows, kind="study")


def _differing(study: ListedStudy) -> list[str]:
    """Name the keys that tell points apart; of two that tell the same, the figure's."""
    shown = [study.shown(point) for point in study.points]
    drawn = [*study.figure.x, *study.figure.series]
    told: dict[tuple[int, ...], str] = {}
    for key in sorted(shown[0], key=lambda key: key not in drawn):
        values = [one[key] for one in shown]
        told.setdefault(tuple(values.index(value) for value in values), key)
    told.pop(tuple(0 for _ in shown), None)
    return [key for key in shown[0] if key in told.values()] or drawn


def _deviation(one: PointResult, quote: Quote | None) -> str:
    return numbers.written(one.deviation(quote) if quote else None, "+.1%")


def _short(value: float | None) -> str:
    """Write a count of millions with three digits; the object has them all."""
    is_large = value is not None and value >= 1e6
    return numbers.count(value) if is_large else _written(value)


def _written(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return numbers.ABSENT if value is None else numbers.measured(value)
