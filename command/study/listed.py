"""A study that lists its points: all are planned, run where asked, set beside the work."""

import json
import time
from collections.abc import Mapping
from typing import Any

from command.outcome import Status
from command.study.listed_points import ListedStudy
from command.study.request import StudyRequest
from command.study.rows import PointResult, median_deviation, relative, study_grid, summary
from command.study.runs import PlannedRuns, PointEnding, Runner, result_in, runner_of
from command.study.schema import Point
from components.errors import RecipeError
from components.report.pages import check_plotly
from components.terminal import console, say, tell

NOT_YET = PointEnding(None, "")


def try_points(asked: StudyRequest, study: ListedStudy) -> Status:
    """Plan all points, run them unless plans are all that is asked for, and say what came out.

    Raises:
        RecipeError: the page has no place, or a result lacks what is compared.
    """
    plans = [plan_point(asked, study, point) for point in study.points]
    try:
        runs = _measured(asked, study)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on. Kept in {asked.folder}")
        return Status.STOPPED
    tried = [
        PointResult(
            point=point,
            planned=plan.figure,
            fits=plan.figure is not None and not plan.why,
            measured=run.figure,
            why="; ".join(why for why in (plan.why, run.why) if why),
            quotes=study.quotes(point),
        )
        for point, plan, run in zip(study.points, plans, runs, strict=True)
    ]
    _tell(asked, study, relative(study, tried))
    found = [*plans, *runs] if asked.action in {"plan", "report"} else runs
    return Status.DONE if any(one.figure is not None for one in found) else Status.WRONG_INPUT


def plan_point(asked: StudyRequest, study: ListedStudy, point: Point) -> PointEnding:
    """Plan a point; what the recipe refuses, or nobody can predict, has no figure.

    A layout that does not fit has one: the work may have run it.
    """
    key = study.objective.planned
    if key is None:
        return NOT_YET
    planner = PlannedRuns(ask=asked.arguments_of, key=key)
    try:
        planner.start(point)
        return PointEnding(planner.figure(point), planner.look(point).why)
    except RecipeError as error:
        return _refused(error)


def _refused(error: RecipeError) -> PointEnding:
    return PointEnding(None, f"{error.path}: {error.problem}")


def _measured(asked: StudyRequest, study: ListedStudy) -> list[PointEnding]:
    """Run the points, or read what is there; a plan needs no run."""
    points = study.points
    if asked.action == "plan":
        runner_of(asked)  # refuses what no plan knows
        return [NOT_YET for _ in points]
    if asked.action == "report":
        key = study.objective.measured
        return [result_in(asked.folder_of(point), key) or NOT_YET for point in points]
    ended = run_points(study, runner_of(asked))
    return [ended[place] for place in range(len(points))]


def run_points(study: ListedStudy, runner: Runner) -> dict[int, PointEnding]:
    """Keep as many runs under way as the study wants until every point has ended."""
    queue, points = study.queue, study.points
    waiting, under_way, ended = list(range(len(points))), list[int](), dict[int, PointEnding]()
    while waiting or under_way:
        for place in list(under_way):
            if (found := runner.look(points[place])) is not None:
                under_way.remove(place)
                ended[place] = found
                _say_point(points[place], found, len(ended))
        if waiting and len(under_way) < queue.at_once:
            place = waiting.pop(0)
            try:
                runner.start(points[place])
                under_way.append(place)
            except RecipeError as error:
                ended[place] = _refused(error)
                _say_point(points[place], ended[place], len(ended))
        elif under_way:
            time.sleep(queue.poll_seconds)
    return ended


def _say_point(point: Point, ended: PointEnding, count: int) -> None:
    text = ", ".join(f"{key}={value}" for key, value in point.items())
    figure = ended.why if ended.figure is None else f"{ended.figure:,.6g}"
    say(f"[{count}] {text}: {figure}")


def _tell(asked: StudyRequest, study: ListedStudy, tried: list[PointResult]) -> None:
    if asked.action == "report":
        check_plotly("action")
        from command.study.page import write_study

        tell(f"{write_study(study, tried, asked.changed, asked.page)}")
    elif asked.output == "json":
        tell(json.dumps(_tree(study, tried)))
    else:
        _print(asked, study, tried)


def _tree(study: ListedStudy, tried: list[PointResult]) -> Mapping[str, Any]:
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
                "published": [
                    {
                        "value": quote.value,
                        "deviation": one.deviation(quote),
                        "place": quote.place,
                    }
                    for quote in one.quotes
                ],
            }
            for one in tried
        ],
        "median_deviation": median_deviation(tried),
    }


def _print(asked: StudyRequest, study: ListedStudy, tried: list[PointResult]) -> None:
    from rich.table import Table

    grid = study_grid(study, tried)
    table = Table(box=None)
    for column in grid.columns:
        left = column in {"note", "place"}
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row.cells))
    out = console(width=160)
    out.print(f"{study.figure.title} ({study.figure.of}); {study.published.unit}")
    out.print(table)
    out.print(f"published by {study.published.source}")
    out.print(f"counted: {study.published.convention}")
    if asked.changed:
        out.print(f"changed by {' '.join(asked.changed)}: published is the file's study")
    out.print(summary(tried))
