"""Run a study. Its listed points are planned, run where asked, set beside the work's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from command.outcome import Status, print_result
from command.study import runs
from command.study.outcomes import PENDING, PointOutcome, read_figure_or_none, result_in
from command.study.page import write_study
from command.study.point_results import (
    PointResult,
    divide_figures,
    median_deviation,
    relative,
    study_grid,
    summary,
)
from command.study.request import StudyRequest, ask
from command.study.schema import ListedStudy
from components.config.schema.types import thaw
from components.errors import RecipeError
from components.report.html import check_destination, check_plotly
from components.terminal import console, say, tell


def run_study(words: Sequence[str]) -> Status:
    """Try the points of a study and print what was found.

    Raises:
        RecipeError: the study, or a word beside it, is wrong.
    """
    request = ask(words)
    if isinstance(request.study, ListedStudy):
        return try_points(request, request.study)
    if request.action == "report":
        remedy = "action=report runs=[...] compares its runs"
        raise RecipeError("action", f"{request.study.name} searches: it has no figure", remedy)
    from command.study.search import search_points  # slow: optuna

    return search_points(request, request.study)


def try_points(request: StudyRequest, study: ListedStudy) -> Status:
    """Plan all points, run them unless plans are all that is asked for, and say what came out.

    Raises:
        RecipeError: the page has no place, or a result lacks what is compared.
    """
    plans = [runs.plan_point(request, point) for point in study.points]
    ended = [PENDING for _ in study.points]  # a plan needs no run
    try:
        if request.action == "report":
            ended = [result_in(request, point) or PENDING for point in study.points]
        else:
            runner = runs.runner_of(request)  # refuses what no plan knows
            ended = ended if request.action == "plan" else run_points(study, runner)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on. Kept in {request.folder}")
        return Status.STOPPED
    tried = _results(study, plans, ended)
    found = [*plans, *ended] if request.action in {"plan", "report"} else ended
    known = any(one.figure is not None for one in found)
    if request.action == "report":
        tell(str(_write_page(request, study, tried, known=known)))
    else:
        print_result(
            request.output, _as_json(study, tried), lambda: _print(request, study, tried)
        )
        if not known:
            say(f"no point has a figure: {_first_reason(tried)}")
    return Status.DONE if known else Status.WRONG_INPUT


def plan_points(request: StudyRequest, study: ListedStudy) -> list[PointResult]:
    """Plan every point and run none; figures are divided by the baseline's."""
    plans = [runs.plan_point(request, point) for point in study.points]
    return _results(study, plans, [PENDING for _ in plans])


def _results(
    study: ListedStudy, plans: Sequence[PointOutcome], ended: Sequence[PointOutcome]
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
    study: ListedStudy, plan: PointOutcome, run: PointOutcome
) -> dict[str, float | None]:
    """Read the further figures of a point: the plan's over the result's, where both are."""
    found: dict[str, float | None] = {}
    for name, column in study.columns.items():
        planned, measured = (
            read_figure_or_none(one.found, key, f"columns.{name}")
            if key and one.found
            else None
            for key, one in ((column.planned, plan), (column.measured, run))
        )
        if column.planned and column.measured:
            found[name] = None if planned is None else divide_figures(planned, measured)
        else:
            found[name] = measured if planned is None else planned
    return found


def _write_page(
    request: StudyRequest, study: ListedStudy, tried: Sequence[PointResult], *, known: bool
) -> Path:
    """Write the page, but none without a figure.

    Raises:
        RecipeError: no point of the study has a plan or a run, or the page has no place.
    """
    check_destination(request.page)
    if not known:
        problem = f"no point of {study.name} has a figure: {_first_reason(tried)}"
        way = "run its points first: -m before study=, without action=report"
        if f"cluster={study.cluster}" not in request.words:
            way = f"leave cluster= out: its points are planned on {study.cluster}"
        raise RecipeError("study", problem, way)
    check_plotly("action")
    return write_study(study, tried, request.changed, request.page)


def _first_reason(tried: Sequence[PointResult]) -> str:
    return next((one.why for one in tried if one.why), "none was planned or has been run")


def run_points(study: ListedStudy, runner: runs.Runner) -> list[PointOutcome]:
    """Keep as many runs under way as the study wants until every point has ended."""
    ended: dict[int, PointOutcome] = {}

    def finish(place: int, found: PointOutcome) -> None:
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
                "point": thaw(study.shown(one.point)),
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


def _print(request: StudyRequest, study: ListedStudy, tried: list[PointResult]) -> None:
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
    if request.changed:
        out.print(f"changed by {' '.join(request.changed)}: published is the file's study")
    out.print(summary(tried))
