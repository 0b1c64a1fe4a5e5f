"""Run a listed study: plan its points, run them, and compare them with published figures."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from cluster.scheduler_command import cached_answers
from command.outcome import Status, print_result
from command.study import runs
from command.study.outcomes import (
    PENDING,
    PointOutcome,
    Poll,
    attempt_point,
    read_figure_or_none,
    result_in,
)
from command.study.page import study_document
from command.study.point_results import (
    PointResult,
    divide_by_baselines,
    divide_figures,
    median_deviation,
    study_grid,
    summarize_points,
)
from command.study.request import StudyRequest, ask_sweep, read_study_request
from command.study.schema import ListedStudy
from components.config.schema.types import to_plain
from components.errors import RecipeError
from components.report.document import write_document
from components.report.html import check_destination, check_plotly
from components.terminal import create_console, log_line, print_output


def run_study(words: Sequence[str]) -> Status:
    """Run the points of a study and print the results."""
    request = read_study_request(words)
    if isinstance(request.study, ListedStudy):
        return try_points(request, request.study)
    if request.action == "report":
        remedy = "compare its runs: action=report runs=[...]"
        raise RecipeError("action", f"{request.study.name} is a search: no figure", remedy)
    from command.study.search import search_points  # slow: optuna

    return search_points(request, request.study)


def run_sweep(points: Sequence[Sequence[str]]) -> Status:
    """Train or submit the points of a sweep, or write the page of those that have run."""
    request = ask_sweep(points)
    assert isinstance(request.study, ListedStudy)
    return try_points(request, request.study)


def try_points(request: StudyRequest, study: ListedStudy) -> Status:
    """Plan all points and print results; run them unless ``action=plan`` or ``report``."""
    plans = [
        attempt_point(partial(runs.plan_point, request, p), request, p) for p in study.points
    ]
    ended = [PENDING for _ in study.points]  # plans need no runs
    try:
        if request.action == "report":
            results = (
                attempt_point(partial(result_in, request, point), request, point)
                for point in study.points
            )
            ended = [result or PENDING for result in results]
        else:
            runner = runs.runner_of(request)  # raises for figures that no plan contains
            ended = ended if request.action == "plan" else run_points(request, study, runner)
    except KeyboardInterrupt:
        log_line(f"stopped; repeat the command to continue. Results: {request.folder}")
        return Status.STOPPED
    tried = _results(study, plans, ended)
    outcomes = [*plans, *ended] if request.action in {"plan", "report"} else ended
    known = any(outcome.figure is not None for outcome in outcomes)
    if request.action == "report":
        print_output(str(_write_page(request, study, tried, known=known)))
    else:
        print_result(
            request.output,
            _as_json(request, study, tried),
            lambda: _print(request, study, tried),
        )
        if not known and request.action == "plan":  # errors of runs are already printed
            log_line(f"no point has a figure: {_first_reason(tried)}")
    failed = max(outcome.status for outcome in (*plans, *ended))
    is_run = request.action not in {"plan", "report"}
    if failed >= Status.FAULT or (is_run and not study.published.values):
        return failed
    return Status.DONE if known else Status.WRONG_INPUT


def plan_points(request: StudyRequest, study: ListedStudy) -> list[PointResult]:
    """Plan every point and run none. Figures are divided by the baseline's."""
    plans = [runs.plan_point(request, point) for point in study.points]
    return _results(study, plans, [PENDING for _ in plans])


def _results(
    study: ListedStudy, plans: Sequence[PointOutcome], ended: Sequence[PointOutcome]
) -> list[PointResult]:
    return divide_by_baselines(study, [
        PointResult(
            point=point,
            planned=plan.figure,
            fits=plan.figure is not None and not plan.why,
            measured=run.figure,
            why="; ".join(why for why in (plan.why, run.why) if why),
            quotes=study.find_quotes(point),
            columns=_columns(study, plan, run),
        )
        for point, plan, run in zip(study.points, plans, ended, strict=True)
    ])  # fmt: skip


def _columns(
    study: ListedStudy, plan: PointOutcome, run: PointOutcome
) -> dict[str, float | None]:
    """Read a point's additional figures. If both exist, the figure is plan over result."""
    figures: dict[str, float | None] = {}
    for name, column in study.columns.items():
        planned, measured = (
            read_figure_or_none(outcome.run_results, key, f"columns.{name}")
            if key and outcome.run_results
            else None
            for key, outcome in ((column.planned, plan), (column.measured, run))
        )
        if column.planned and column.measured:
            figures[name] = None if planned is None else divide_figures(planned, measured)
        else:
            figures[name] = measured if planned is None else planned
    return figures


def _write_page(
    request: StudyRequest, study: ListedStudy, tried: Sequence[PointResult], *, known: bool
) -> Path:
    """Write the page of a study with at least one figure."""
    check_destination(request.page)
    if not known:
        problem = f"no point of {study.name} has a figure: {_first_reason(tried)}"
        remedy = "run the points first: replace action=report with -m"
        if study.needs_plans and f"cluster={study.cluster}" not in request.words:
            remedy = f"remove cluster=: the points are planned on {study.cluster}"
        raise RecipeError("study", problem, remedy)
    check_plotly("action")
    return write_document(study_document(study, tried, request.changed), request.page)


def _first_reason(tried: Sequence[PointResult]) -> str:
    return next((result.why for result in tried if result.why), "no point was planned or run")


def run_points(
    request: StudyRequest, study: ListedStudy, check: runs.Runner
) -> list[PointOutcome]:
    """Check all points, then run those that passed. An error ends only its own point."""
    with cached_answers():
        checked = [attempt_point(partial(check, p), request, p) for p in study.points]
    if any(not isinstance(begin, PointOutcome) for begin in checked):
        log_line(f"study: {request.folder}  (repeat the command to continue)")
    begun: list[Poll | PointOutcome] = []
    for number, (begin, point) in enumerate(zip(checked, study.points, strict=True), start=1):
        if isinstance(begin, PointOutcome):
            begun.append(begin)
            continue
        log_line(f"[{request.folder_of(point).name}] {number} of {len(study.points)}")
        begun.append(attempt_point(begin, request, point))
    with cached_answers():
        ended = [
            poll if isinstance(poll, PointOutcome) else attempt_point(poll, request, point)
            for poll, point in zip(begun, study.points, strict=True)
        ]
    return [outcome or PENDING for outcome in ended]


def _as_json(
    request: StudyRequest, study: ListedStudy, tried: list[PointResult]
) -> Mapping[str, Any]:
    """Return the object of ``output=json``. Figures are in the published unit."""
    return {
        "study": study.name,
        "objective": study.objective.model_dump(mode="json"),
        "source": study.published.source,
        "unit": study.published.unit,
        "convention": study.published.convention,
        "points": [
            {
                "point": to_plain(study.list_shown_values(result.point)),
                "run": str(request.folder_of(result.point)),
                "planned": result.planned,
                "fits": result.fits,
                "measured": result.measured,
                "why": result.why,
                **({"columns": result.columns} if study.columns else {}),
                "published": [
                    {"value": q.value, "deviation": result.plan_deviation(q), "place": q.place}
                    for q in result.quotes
                ],
            }
            for result in tried
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
    out = create_console(width=160)
    work, published = study.chart_axes.of, study.published
    unit = f"; {published.unit}" if published.unit else ""
    out.print(f"{study.chart_axes.title}{f' ({work})' if work else ''}{unit}")
    out.print(table)
    if published.source:
        out.print(f"published by {published.source}")
    if published.convention:
        out.print(f"counted: {published.convention}")
    if request.changed:
        out.print(f"changed by {' '.join(request.changed)}: published values are for the file")
    out.print(summarize_points(tried))
