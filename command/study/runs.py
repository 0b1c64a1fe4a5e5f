"""Runs of a study's points: planned, trained on this machine, or submitted to a cluster."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.clients import scheduler_for
from cluster.job import job_settings
from cluster.records import Jobs
from cluster.status import status_of
from cluster.user import read_user
from command.arguments import ROOT, Arguments, read_point
from command.composition.compose import compose_recipe
from command.jobs.submission import (
    CheckedRun,
    SubmittedError,
    check_resubmission,
    check_run,
    submit_run,
)
from command.outcome import ActionResult, Status
from command.perform import perform
from command.study.outcomes import (
    PENDING,
    PointOutcome,
    Poll,
    measures_tokenizers,
    read_figure,
    refused,
    result_in,
)
from command.study.request import StudyRequest
from command.study.schema import ListedStudy, Point, QueueLimits, point_text
from command.study.tokenizers import count_point
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.resolve import check_continues
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.report.html import share_script
from components.run.folder import RunFolder
from components.terminal import say

# Begins a point's run, or takes the one that is there; raises RecipeError if it cannot be.
Runner = Callable[[Point], Poll]


def runner_of(request: StudyRequest) -> Runner:
    """Choose by the action.

    Raises:
        RecipeError: plans are asked for, and none knows what the study compares.
    """
    objective = request.study.objective
    if request.action == "plan" and objective.planned is None:
        remedy = "run it: leave action=plan out"
        raise RecipeError("action", f"no plan knows {objective.measured}", remedy)
    if request.action == "plan":
        return partial(_plan, request)
    if objective.measured is None:
        problem = f"no run measures {objective.planned}"
        raise RecipeError("action", problem, "plan it: action=plan")
    if measures_tokenizers(request.study):
        return partial(count_point, request)
    return partial(_train if request.action == "train" else _submit, request)


def _plan(request: StudyRequest, point: Point) -> Poll:
    planned = plan_point(request, point)
    return lambda: replace(planned, figure=None) if planned.why else planned


def _train(request: StudyRequest, point: Point) -> Poll:
    """Train a point, or continue its run; an interrupted run interrupts the study.

    Raises:
        RecipeError: the run in its folder has another recipe.
    """
    arguments, path = request.arguments_of(point), request.folder_of(point)
    recipe = compose_recipe(arguments)  # a point that is refused leaves nothing behind
    if (path / "recipe.json").exists():
        check_continues(read_recipe(path / "recipe.json"), recipe, path)
    if result_in(request, point) is None:
        ended = train_run(arguments, path)
        share_script(request.folder)  # for later pages; a refused point has written nothing
        if ended.status in {Status.STOPPED, Status.INTERRUPTED}:
            raise KeyboardInterrupt
    return lambda: result_in(request, point) or PointOutcome(None, "did not finish")


def train_run(arguments: Arguments, path: Path) -> ActionResult:
    """Train a point's run in its folder, or continue the one that is there."""
    if RunFolder(path).recipe.exists():
        resumed = read_point([f"resume={path}"])
        arguments = replace(resumed, site=arguments.site)
    else:
        arguments = replace(arguments, run=path)
    with redirect_stdout(sys.stderr):  # standard output has the figures of all points
        return perform("train", arguments)


@dataclass(frozen=True)
class SubmittedRun:
    """A run in the scheduler's hands; of such its queue takes ``most`` of one user together."""

    request: StudyRequest
    point: Point
    most: int | None

    def __call__(self) -> PointOutcome | None:
        """Ask how it ended; nothing as long as it has not."""
        path = self.request.folder_of(self.point)
        status = status_of(path, scheduler_for(read_recipe(path / "recipe.json").cluster))
        if status.queued is None or status.queued:  # the scheduler is silent, or busy
            return None
        ended = PointOutcome(None, f"{status.state}: {status.why}")
        return result_in(self.request, self.point) or ended


def _submit(request: StudyRequest, point: Point) -> Poll:
    """Submit a point; a run that was submitted before is left as it is, however it ended."""
    arguments, path = request.arguments_of(point), request.folder_of(point)
    recipe = compose_recipe(arguments)
    user = read_user(recipe.cluster.name, arguments.site)
    settings = job_settings(recipe, user, repository=ROOT, run=path)
    if (checked := check_submission(recipe, arguments, path)) is not None:
        submit_run(checked, after=None)
    return SubmittedRun(request, point, settings.runs_at_once)


def check_submission(recipe: Recipe, arguments: Arguments, path: Path) -> CheckedRun | None:
    """Check a point's run before it is submitted; None if it was, and is left as it is.

    If its submission was cut short and the queue has no job of it, it is submitted again.

    Raises:
        RecipeError: the run cannot be submitted, or has children.
    """
    if recipe.children:
        problem = "every point would be a tree of its own"
        raise RecipeError("children", problem, "submit this run by itself")
    chain = Jobs(RunFolder(path)).chain()
    if chain.submissions and not chain.ids:
        arguments = replace(arguments, again=True)
    try:
        check_resubmission(recipe, path, arguments)
    except SubmittedError as error:
        say(f"[{path.name}] left as it is: {error.problem}; {error.remedy}")
        return None
    return check_run(recipe, arguments, path)


def plan_point(request: StudyRequest, point: Point) -> PointOutcome:
    """Plan a point; what is refused has no figure, but a layout that does not fit has one."""
    key = request.study.objective.planned
    if key is None and not (
        isinstance(request.study, ListedStudy) and request.study.needs_plans
    ):
        return PENDING
    try:
        tree, why = _planned(request, point)
        figure = None if key is None else read_figure(tree, key, "objective.planned")
        return PointOutcome(figure, why, tree)
    except RecipeError as error:
        return refused(error)


def _planned(request: StudyRequest, point: Point) -> tuple[Mapping[str, Any], str]:
    """Give a plan's JSON with what the recipe derives, and why its layout does not fit."""
    recipe = compose_recipe(request.arguments_of(point))
    plan = plan_recipe(recipe)
    unfit = plan.memory.verdict == "does_not_fit"
    why = f"does not fit: {plan.memory.peak_bytes / 2**30:.1f} GiB a device" if unfit else ""
    return {**plan.as_json(), "derived": recipe.derived.model_dump(mode="json")}, why


def run_all(
    start: Runner,
    points: Iterable[tuple[int, Point]],
    finish: Callable[[int, PointOutcome], None],
    queue: QueueLimits,
) -> None:
    """Keep as many runs under way as ``queue`` allows until every numbered point has ended.

    A queue of the cluster's may take fewer of one user.
    """
    waiting, under_way = iter(points), dict[int, Poll]()
    while True:
        for number, look in list(under_way.items()):
            if (ended := look()) is not None:
                del under_way[number]
                finish(number, ended)
        at_once = min(_admitted(under_way.values()), default=queue.at_once)
        if (
            len(under_way) < min(at_once, queue.at_once)
            and (drawn := next(waiting, None)) is not None
        ):
            number, point = drawn
            try:
                under_way[number] = start(point)
            except RecipeError as error:
                finish(number, refused(error))
        elif under_way:
            time.sleep(queue.poll_seconds)
        else:
            return


def _admitted(runs: Iterable[Poll]) -> Iterator[int]:
    """List how many runs together the queues of those under way take."""
    for run in runs:
        if isinstance(run, SubmittedRun) and run.most is not None:
            yield run.most


def say_ended(number: int, point: Point, ended: PointOutcome) -> None:
    """Tell of a point that has ended."""
    figure = ended.why if ended.figure is None else f"{ended.figure:,.6g}"
    say(f"[{number}] {point_text(point)}: {figure}")
