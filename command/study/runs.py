"""Runs of a study's points: planned, trained on this machine, or submitted to a cluster."""

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from cluster.schedulers import scheduler_of
from cluster.status import status_of
from command.actions import auto
from command.actions.plan import as_json
from command.arguments import Arguments, read_point
from command.compose import compose_recipe
from command.outcome import Status
from command.study.listed_points import ListedStudy
from command.study.request import StudyRequest
from command.study.schema import Point, SearchStudy, Value
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.run.ownership import check_links
from components.run.records import Ending, read_checked

Ask = Callable[[Point], Arguments]
Folder = Callable[[Point], Path]


@dataclass(frozen=True)
class PointEnding:
    """What became of a point: its figure, or why there is none."""

    figure: float | None
    why: str


class Runner(Protocol):
    """Makes runs of points and tells how they are."""

    def start(self, point: Point) -> None:
        """Begin the point's run; one that is there already is left as it is.

        Raises:
            RecipeError: the point cannot be.
        """
        ...

    def look(self, point: Point) -> PointEnding | None:
        """Tell how the run ended; nothing as long as it has not."""
        ...


class PlannedRuns:
    """Points that are planned and never run: their figures are there at once."""

    def __init__(self, *, ask: Ask, key: str) -> None:
        self._ask = ask
        self._key = key
        self._trees: dict[frozenset[tuple[str, Value]], dict[str, Any]] = {}

    def start(self, point: Point) -> None:
        recipe = compose_recipe(self._ask(point))
        self._trees[frozenset(point.items())] = as_json(recipe, plan_recipe(recipe))

    def look(self, point: Point) -> PointEnding:
        tree = self._trees[frozenset(point.items())]
        memory = tree["memory"]
        if memory["verdict"] == "does_not_fit":
            gib = memory["peak_bytes"] / 2**30
            return PointEnding(None, f"does not fit: {gib:.1f} GiB a device")
        return PointEnding(self.figure(point), "")

    def figure(self, point: Point) -> float:
        """Return what the plan says, also of a layout that does not fit."""
        tree = self._trees[frozenset(point.items())]
        return figure_of(tree, self._key, "objective.planned")


class LocalRuns:
    """Points that are trained on this machine, one after the other."""

    def __init__(
        self, *, ask: Ask, folder: Folder, key: str, train: Callable[[Arguments], None]
    ) -> None:
        self._ask = ask
        self._folder = folder
        self._key = key
        self._train = train

    def start(self, point: Point) -> None:
        if result_in(self._folder(point), self._key) is None:
            self._train(self._ask(point))

    def look(self, point: Point) -> PointEnding:
        ended = result_in(self._folder(point), self._key)
        return ended or PointEnding(None, "did not finish")


class SubmittedRuns:
    """Runs in a queue; what is there already, whatever became of it, is not submitted again."""

    def __init__(self, *, ask: Ask, folder: Folder, key: str) -> None:
        self._ask = ask
        self._folder = folder
        self._key = key

    def start(self, point: Point) -> None:
        from command.actions.submit import (  # imports torch
            check,
            check_not_submitted,
            hand_over,
        )

        arguments, path = self._ask(point), self._folder(point)
        recipe = compose_recipe(arguments)
        try:
            check_not_submitted(recipe, path, again=False)
        except RecipeError as standing:
            if standing.path != "run":
                raise
            return
        hand_over(check(recipe, arguments, path), after=None)

    def look(self, point: Point) -> PointEnding | None:
        path = self._folder(point)
        cluster = read_recipe(path / "recipe.json").cluster
        status = status_of(path, scheduler_of(cluster))
        if status.queued is None or status.queued:  # the scheduler does not answer, or is busy
            return None
        ended = result_in(path, self._key)
        return ended or PointEnding(None, f"{status.state}: {status.why}")


def result_in(run: Path, key: str) -> PointEnding | None:
    """Read the figure of a run that has finished; nothing of one that has not.

    Raises:
        RecipeError: it finished without such a figure.
    """
    file = run / "results.json"
    if not file.is_file():
        return None
    check_links(run, "run")
    results = read_checked(file, Ending, finite=False)
    if results["status"] != "finished":
        return None
    if key in results.get("not_finite", ()):  # earlier versions have no such list
        return PointEnding(None, f"{key} is no finite number: the run diverged")
    return PointEnding(figure_of(results, key, "objective.measured"), "")


def figure_of(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Follow a dotted key.

    Raises:
        RecipeError: it leads nowhere, or to no number.
    """
    figure = reduce(_inside, key.split("."), tree)
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        raise RecipeError(where, f"{key} is no number there", "name another key")
    return float(figure)


def _inside(node: Any, step: str) -> Any:
    return node.get(step) if isinstance(node, Mapping) else None


def runner_of(asked: StudyRequest) -> Runner:
    """Choose by the action.

    Raises:
        RecipeError: plans are asked for, and none knows what the study compares.
    """
    key = asked.study.objective.measured
    if asked.action == "plan":
        return PlannedRuns(ask=asked.arguments_of, key=planned_key(asked.study))
    if asked.action == "train":
        return LocalRuns(ask=asked.arguments_of, folder=asked.folder_of, key=key, train=_train)
    return SubmittedRuns(ask=asked.arguments_of, folder=asked.folder_of, key=key)


def planned_key(study: SearchStudy | ListedStudy) -> str:
    """Name what a plan calls that which the study compares.

    Raises:
        RecipeError: no plan knows it.
    """
    if study.objective.planned is None:
        remedy = "run it: leave action=plan out"
        raise RecipeError("action", f"no plan knows {study.objective.measured}", remedy)
    return study.objective.planned


def _train(arguments: Arguments) -> None:
    """Train a point, or go on with it; who interrupts a run interrupts the study."""
    folder = arguments.folders["run"]
    if folder.exists():
        arguments = read_point([f"resume={folder}"])
    with redirect_stdout(sys.stderr):  # standard output is the study's
        ended = auto.run(arguments)
    if ended.status in {Status.STOPPED, Status.INTERRUPTED}:
        raise KeyboardInterrupt
