"""A study that lists its points: all are planned, run where asked, set beside the work's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from command.outcome import Status, print_result
from command.study import runs
from command.study.request import StudyRequest
from command.study.runs import NOT_YET, PointEnding
from command.study.schema import OUT_OF_MEMORY, ListedStudy, Quote, Value
from components.errors import RecipeError
from components.report import numbers
from components.report.html import check_destination, check_plotly
from components.report.tables import Grid
from components.terminal import console, say, tell


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point; ``fits`` is the plan's word, ``why`` what speaks against plan or run."""

    point: Mapping[str, Value]
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
        planned = _ratio(one.planned, base.planned)
        measured = _ratio(one.measured, base.measured)
        found.append(replace(one, planned=planned, measured=measured))
    return found


def _ratio(value: float | None, base: float | None) -> float | None:
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
                *(numbers.exact(shown[key]) for key in keys),
                *((_written(quote.value if quote else None),) * quoted),
                *((_written(one.planned),) * planned),
                *((_deviation(one, quote),) * (quoted and planned)),
                *((_written(one.measured),) * measured),
                *(_short(one.columns.get(name)) for name in study.columns),
                *((one.why,) * noted),
                *((quote.place if quote else "",) * quoted),
            ))
    return Grid(columns=columns, rows=rows)


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


def try_points(asked: StudyRequest, study: ListedStudy) -> Status:
    """Plan all points, run them unless plans are all that is asked for, and say what came out.

    Raises:
        RecipeError: the page has no place, or a result lacks what is compared.
    """
    plans = [runs.plan_point(asked, point) for point in study.points]
    ended = [NOT_YET for _ in study.points]  # a plan needs no run
    try:
        if asked.action == "report":
            ended = [runs.result_in(asked, point) or NOT_YET for point in study.points]
        else:
            runner = runs.runner_of(asked)  # refuses what no plan knows
            ended = ended if asked.action == "plan" else run_points(study, runner)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on. Kept in {asked.folder}")
        return Status.STOPPED
    tried = _results(study, plans, ended)
    found = [*plans, *ended] if asked.action in {"plan", "report"} else ended
    known = any(one.figure is not None for one in found)
    if asked.action == "report":
        tell(str(_write_page(asked, study, tried, known=known)))
    else:
        print_result(asked.output, _as_json(study, tried), lambda: _print(asked, study, tried))
        if not known:
            say(f"no point has a figure: {_first_reason(tried)}")
    return Status.DONE if known else Status.WRONG_INPUT


def plan_points(asked: StudyRequest, study: ListedStudy) -> list[PointResult]:
    """Plan every point and run none; figures are divided by the baseline's."""
    plans = [runs.plan_point(asked, point) for point in study.points]
    return _results(study, plans, [NOT_YET for _ in plans])


def _results(
    study: ListedStudy, plans: Sequence[PointEnding], ended: Sequence[PointEnding]
) -> list[PointResult]:
    """Set what was planned and run of each point beside each other."""
    return relative(study, [
        PointResult(
            point=point,
            planned=plan.figure,
            fits=plan.figure is not None and not plan.why,
            measured=run.figure,
            why="; ".join(why for why in (plan.why, run.why) if why),
            quotes=study.quotes(point),
            columns=_columns(study, plan, run),
        )
        for point, plan, run in zip(study.points, plans, ended, strict=True)
    ])  # fmt: skip


def _columns(
    study: ListedStudy, plan: PointEnding, run: PointEnding
) -> dict[str, float | None]:
    """Read the further figures of a point: the plan's over the result's, where both are."""
    found: dict[str, float | None] = {}
    for name, column in study.columns.items():
        planned, measured = (
            runs.known_in(one.found, key, f"columns.{name}") if key and one.found else None
            for key, one in ((column.planned, plan), (column.measured, run))
        )
        if column.planned and column.measured:
            found[name] = None if planned is None else _ratio(planned, measured)
        else:
            found[name] = measured if planned is None else planned
    return found


def _write_page(
    asked: StudyRequest, study: ListedStudy, tried: Sequence[PointResult], *, known: bool
) -> Path:
    """Write the page, but none without a figure.

    Raises:
        RecipeError: no point of the study has a plan or a run, or the page has no place.
    """
    check_destination(asked.page)
    if not known:
        problem = f"no point of {study.name} has a figure: {_first_reason(tried)}"
        way = "run its points first: -m before study=, without action=report"
        if f"cluster={study.cluster}" not in asked.words:
            way = f"leave cluster= out: its points are planned on {study.cluster}"
        raise RecipeError("study", problem, way)
    check_plotly("action")
    from command.study.page import write_study

    return write_study(study, tried, asked.changed, asked.page)


def _first_reason(tried: Sequence[PointResult]) -> str:
    return next((one.why for one in tried if one.why), "none was planned or has been run")


def run_points(study: ListedStudy, runner: runs.Runner) -> list[PointEnding]:
    """Keep as many runs under way as the study wants until every point has ended."""
    ended: dict[int, PointEnding] = {}

    def finish(place: int, found: PointEnding) -> None:
        ended[place] = found
        runs.say_ended(len(ended), study.points[place], found)

    runs.run_all(runner, enumerate(study.points), finish, study.queue)
    return [ended[place] for place in range(len(study.points))]


def _as_json(study: ListedStudy, tried: list[PointResult]) -> Mapping[str, Any]:
    """Return what ``output=json`` prints; figures are in the published unit."""
    return {
        "study": study.name,
        "objective": study.objective.model_dump(mode="json"),
        "source": study.published.source,
        "unit": study.published.unit,
        "convention": study.published.convention,
        "points": [
            {
                "point": study.shown(one.point),
                "planned": one.planned,
                "fits": one.fits,
                "measured": one.measured,
                "why": one.why,
                **({"columns": one.columns} if study.columns else {}),
                "published": [
                    {"value": q.value, "deviation": one.deviation(q), "place": q.place}
                    for q in one.quotes
                ],
            }
            for one in tried
        ],
        "median_deviation": median_deviation(tried),
    }


def _print(asked: StudyRequest, study: ListedStudy, tried: list[PointResult]) -> None:
    grid = study_grid(study, tried)
    table = Table(box=None)
    for column in grid.columns:
        left = column in {"note", "place"}
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*row)
    out = console(width=160)
    out.print(f"{study.figure.title} ({study.figure.of}); {study.published.unit}")
    out.print(table)
    out.print(f"published by {study.published.source}")
    out.print(f"counted: {study.published.convention}")
    if asked.changed:
        out.print(f"changed by {' '.join(asked.changed)}: published is the file's study")
    out.print(summary(tried))
