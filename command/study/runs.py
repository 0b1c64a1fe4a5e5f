"""Runs of a study's points: planned, trained on this machine, or submitted to a cluster."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.records import status_of
from cluster.scheduler import scheduler_of
from command.actions import auto
from command.actions.submit import check, hand_over, submitted_before
from command.arguments import read_point
from command.compose import compose_recipe
from command.outcome import Status
from command.study.request import StudyRequest
from command.study.schema import Point, QueueLimits, Value
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.planner.result import PlanResult, plan_result
from components.run.ownership import check_links
from components.run.records import Ending, read_checked


@dataclass(frozen=True)
class PointEnding:
    """What became of a point: its figure, or why there is none."""

    figure: float | None
    why: str


NOT_YET = PointEnding(None, "")


class Runner(Protocol):
    """Makes runs of points and tells how they are."""

    def start(self, point: Point) -> None:
        """Begin the point's run; one that is there already is left as it is.

        Raises:
            RecipeError: the point cannot be.
        """
        ...

    def look(self, point: Point) -> PointEnding | None:
        """Report how the run ended; nothing as long as it has not."""
        ...


class PlannedRuns:
    """Points that are planned and never run: their figures are there at once.

    Raises:
        RecipeError: no plan knows what the study compares.
    """

    def __init__(self, asked: StudyRequest) -> None:
        objective = asked.study.objective
        if objective.planned is None:
            remedy = "run it: leave action=plan out"
            raise RecipeError("action", f"no plan knows {objective.measured}", remedy)
        self._asked, self._key = asked, objective.planned
        self._plans: dict[frozenset[tuple[str, Value]], PlanResult] = {}

    def start(self, point: Point) -> None:
        recipe = compose_recipe(self._asked.arguments_of(point))
        self._plans[frozenset(point.items())] = plan_result(recipe, plan_recipe(recipe))

    def look(self, point: Point) -> PointEnding:
        memory = self._plans[frozenset(point.items())].memory
        if memory.verdict == "does_not_fit":
            gib = memory.peak_bytes / 2**30
            return PointEnding(None, f"does not fit: {gib:.1f} GiB a device")
        return PointEnding(self.figure(point), "")

    def figure(self, point: Point) -> float:
        """Return what the plan says, also of a layout that does not fit."""
        plan = self._plans[frozenset(point.items())]
        return _figure(plan.as_json(), self._key, "objective.planned")


@dataclass(frozen=True)
class LocalRuns:
    """Points that are trained on this machine, one after the other."""

    asked: StudyRequest

    def start(self, point: Point) -> None:
        """Train a point, or go on with it; who interrupts a run interrupts the study."""
        if result_in(self.asked, point) is not None:
            return
        arguments = self.asked.arguments_of(point)
        if arguments.run is not None and arguments.run.exists():
            arguments = read_point([f"resume={arguments.run}"])
        with redirect_stdout(sys.stderr):  # standard output is the study's
            ended = auto.run(arguments)
        if ended.status in {Status.STOPPED, Status.INTERRUPTED}:
            raise KeyboardInterrupt

    def look(self, point: Point) -> PointEnding:
        return result_in(self.asked, point) or PointEnding(None, "did not finish")


@dataclass(frozen=True)
class SubmittedRuns:
    """Runs in a queue; what is there already, whatever became of it, is not submitted again."""

    asked: StudyRequest

    def start(self, point: Point) -> None:
        arguments, path = self.asked.arguments_of(point), self.asked.folder_of(point)
        recipe = compose_recipe(arguments)
        if submitted_before(recipe, path, again=False) is None:
            hand_over(check(recipe, arguments, path), after=None)

    def look(self, point: Point) -> PointEnding | None:
        path = self.asked.folder_of(point)
        cluster = read_recipe(path / "recipe.json").cluster
        status = status_of(path, scheduler_of(cluster))
        if status.queued is None or status.queued:  # the scheduler does not answer, or is busy
            return None
        ended = result_in(self.asked, point)
        return ended or PointEnding(None, f"{status.state}: {status.why}")


def plan_point(asked: StudyRequest, point: Point) -> PointEnding:
    """Plan a point; what the recipe refuses, or nobody can predict, has no figure.

    A layout that does not fit has one: the work may have run it.
    """
    if asked.study.objective.planned is None:
        return NOT_YET
    planner = PlannedRuns(asked)
    try:
        planner.start(point)
        return PointEnding(planner.figure(point), planner.look(point).why)
    except RecipeError as error:
        return refused(error)


def runner_of(asked: StudyRequest) -> Runner:
    """Choose by the action.

    Raises:
        RecipeError: plans are asked for, and none knows what the study compares.
    """
    if asked.action == "plan":
        return PlannedRuns(asked)
    return LocalRuns(asked) if asked.action == "train" else SubmittedRuns(asked)


def run_all(
    runner: Runner,
    points: Iterable[tuple[int, Point]],
    finish: Callable[[int, PointEnding], None],
    queue: QueueLimits,
) -> None:
    """Keep as many runs under way as ``queue`` allows until every numbered point has ended."""
    waiting, under_way = iter(points), dict[int, Point]()
    while True:
        for number, point in list(under_way.items()):
            if (ended := runner.look(point)) is not None:
                del under_way[number]
                finish(number, ended)
        if len(under_way) < queue.at_once and (drawn := next(waiting, None)) is not None:
            number, point = drawn
            try:
                runner.start(point)
                under_way[number] = point
            except RecipeError as error:
                finish(number, refused(error))
        elif under_way:
            time.sleep(queue.poll_seconds)
        else:
            return


def refused(error: RecipeError) -> PointEnding:
    """Return the ending of a point that cannot be."""
    return PointEnding(None, f"{error.path}: {error.problem}")


def result_in(asked: StudyRequest, point: Point) -> PointEnding | None:
    """Read the figure of a point's run that has finished; nothing of one that has not.

    Raises:
        RecipeError: it finished without such a figure.
    """
    run, key = asked.folder_of(point), asked.study.objective.measured
    file = run / "results.json"
    if not file.is_file():
        return None
    check_links(run, "run")
    results = read_checked(file, Ending, finite=False)
    if results["status"] != "finished":
        return None
    if key in results.get("not_finite", ()):  # earlier versions have no such list
        return PointEnding(None, f"{key} is no finite number: the run diverged")
    return PointEnding(_figure(results, key, "objective.measured"), "")


def _figure(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Follow a dotted key to a number."""
    figure: Any = tree
    for step in key.split("."):
        figure = figure.get(step) if isinstance(figure, Mapping) else None
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        raise RecipeError(where, f"{key} is no number there", "name another key")
    return float(figure)
