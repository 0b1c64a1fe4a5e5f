"""Results of a study's points, and the table that compares them with published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from command.study.schema import OUT_OF_MEMORY, ListedStudy, Point, Quote, as_scalar
from components.report import numbers
from components.report.tables import Grid


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point's results; ``fits`` is from the plan, ``why`` explains a failed plan or run."""

    point: Point
    planned: float | None
    fits: bool
    measured: float | None
    why: str
    quotes: tuple[Quote, ...]
    columns: Mapping[str, float | None] = field(default_factory=dict)

    def plan_deviation(self, quote: Quote) -> float | None:
        """Return the plan's relative deviation from a published figure."""
        if self.planned is None or isinstance(quote.value, str):
            return None
        return self.planned / quote.value - 1


def divide_by_baselines(study: ListedStudy, tried: Sequence[PointResult]) -> list[PointResult]:
    """Divide each figure by its baseline's figure, if the study has a baseline."""
    if not study.baseline:
        return list(tried)
    results = []
    for result in tried:
        (base,) = (other for other in tried if other.point == study.find_baseline(result.point))
        planned = divide_figures(result.planned, base.planned)
        measured = divide_figures(result.measured, base.measured)
        results.append(replace(result, planned=planned, measured=measured))
    return results


def divide_figures(value: float | None, base: float | None) -> float | None:
    """Return ``value`` over ``base``; None if either is missing, or ``base`` is 0."""
    return None if value is None or not base else value / base


def median_deviation(tried: Sequence[PointResult]) -> float | None:
    """Return the median of the plans' absolute deviations, or None without any."""
    every = (result.plan_deviation(quote) for result in tried for quote in result.quotes)
    deviations = [abs(deviation) for deviation in every if deviation is not None]
    return median(deviations) if deviations else None


def summarize_points(tried: Sequence[PointResult]) -> str:
    """Return one line with the plans' deviation and the published points that do not fit."""
    quotes = [(result, quote) for result in tried for quote in result.quotes]
    compared = [result for result, quote in quotes if result.plan_deviation(quote) is not None]
    parts = [f"{len(tried)} points, {len(quotes)} published figures"]
    middle = median_deviation(tried)
    if middle is not None:
        parts.append(f"plans off by {middle:.1%} (median of {len(compared)})")
    for name, out in (("ran", False), ("ran out of memory", True)):
        group = [result for result, quote in quotes if (quote.value == OUT_OF_MEMORY) == out]
        without = sum(not result.fits for result in group)
        if without:
            count = f"{without} of {len(group)}"
            parts.append(f"{count} that {name} do not fit in the plan, or are refused")
    return "; ".join(parts)


def study_grid(study: ListedStudy, tried: Sequence[PointResult]) -> Grid:
    """Return a table with a row per published figure, or one row for a point without any."""
    keys = _differing(study)
    planned = study.objective.planned is not None
    measured = any(result.measured is not None for result in tried)
    quoted = any(result.quotes for result in tried)
    noted = any(result.why for result in tried)
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
    for result in tried:
        shown = study.list_shown_values(result.point)
        for quote in result.quotes or (None,):
            off = result.plan_deviation(quote) if quote else None
            rows.append((
                *(numbers.format_exact(as_scalar(shown[key])) for key in keys),
                *((_written(quote.value if quote else None),) * quoted),
                *((_written(result.planned),) * planned),
                *((numbers.format_value(off, "+.1%"),) * (quoted and planned)),
                *((_written(result.measured),) * measured),
                *(_short(result.columns.get(name)) for name in study.columns),
                *((result.why,) * noted),
                *((quote.place if quote else "",) * quoted),
            ))
    return Grid(columns=columns, rows=rows, kind="study")


def _differing(study: ListedStudy) -> list[str]:
    """List the keys that distinguish points; of two equivalent keys, the figure's."""
    shown = [study.list_shown_values(point) for point in study.points]
    drawn = [*study.chart_axes.x, *study.chart_axes.series]
    keys_by_pattern: dict[tuple[int, ...], str] = {}
    for key in sorted(shown[0], key=lambda key: key not in drawn):
        values = [point_values[key] for point_values in shown]
        keys_by_pattern.setdefault(tuple(values.index(value) for value in values), key)
    keys_by_pattern.pop(tuple(0 for _ in shown), None)
    return [key for key in shown[0] if key in keys_by_pattern.values()] or [
        key for key in drawn if key in shown[0]
    ]


def _short(value: float | None) -> str:
    """Write millions with three digits. The JSON object has all digits."""
    is_large = value is not None and value >= 1e6
    return numbers.format_count(value) if is_large else _written(value)


def _written(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return numbers.ABSENT if value is None else numbers.format_measured(value)
