"""Runs of a study's points: planned, trained on this machine, or submitted to a cluster."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
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
from command.outcome import Status
from command.perform import run_action
from command.study.outcomes import (
    PENDING,
    PointOutcome,
    Poll,
    measures_tokenizers,
    read_figure,
    result_in,
)
from command.study.request import StudyRequest
from command.study.schema import ListedStudy, Point, SearchStudy
from command.study.tokenizers import count_point
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.resolve import check_continues
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.report.html import share_script
from components.run.folder import RunFolder
from components.terminal import log_line

Begin = Callable[[], Poll]  # starts the run of a checked point
Runner = Callable[[Point], Begin]  # checks a point; raises RecipeError if it cannot run


def runner_of(request: StudyRequest) -> Runner:
    """Return the runner for the request's action; RecipeError without the compared figure."""
    objective = request.study.objective
    if request.action == "plan" and objective.planned is None:
        remedy = "remove action=plan to run the study"
        raise RecipeError("action", f"a plan has no {objective.measured}", remedy)
    if request.action == "plan":
        return lambda point: partial(_plan, request, point)
    if objective.measured is None:
        problem = f"a run does not measure {objective.planned}"
        raise RecipeError("action", problem, "add action=plan")
    if measures_tokenizers(request.study):
        return lambda point: partial(count_point, request, point)
    return partial(_check_training, request) if request.action == "train" else Queue(request)


def _plan(request: StudyRequest, point: Point) -> Poll:
    planned = plan_point(request, point)
    return lambda: replace(planned, figure=None) if planned.why else planned


def _check_training(request: StudyRequest, point: Point) -> Begin:
    arguments, path = request.arguments_of(point), request.folder_of(point)
    recipe = compose_recipe(arguments)  # a refused point leaves no files
    if (path / "recipe.json").exists():
        check_continues(read_recipe(path / "recipe.json"), recipe, path)
    return partial(_train, request, point, arguments)


def _train(request: StudyRequest, point: Point, arguments: Arguments) -> Poll:
    """Train a point, or continue its run. An interrupted run interrupts the study."""
    path = request.folder_of(point)
    if result_in(request, point) is not None:
        log_line(f"[{path.name}] skipped: the run has finished")
    else:
        if RunFolder(path).recipe.exists():
            arguments = replace(read_point([f"resume={path}"]), site=arguments.site)
        with redirect_stdout(sys.stderr):  # standard output is for the figures of all points
            ended = run_action("train", arguments)
        share_script(request.folder)  # for later pages; only after a point has written files
        if ended.status in {Status.STOPPED, Status.INTERRUPTED}:
            raise KeyboardInterrupt
    failed = PointOutcome(None, "did not finish", status=Status.DOES_NOT_HOLD)
    return lambda: result_in(request, point) or failed


@dataclass(frozen=True)
class SubmittedRun:
    """A submitted run. Its queue takes at most ``most`` runs per user."""

    request: StudyRequest
    point: Point
    most: int | None

    def __call__(self) -> PointOutcome | None:
        """Return the outcome; of an active run None (search) or its state (listed)."""
        path = self.request.folder_of(self.point)
        status = status_of(path, scheduler_for(read_recipe(path / "recipe.json").cluster))
        is_under_way = status.queued is None or bool(status.queued)
        if is_under_way and isinstance(self.request.study, SearchStudy):
            return None
        state = PointOutcome(None, f"{status.state}: {status.why}".removesuffix(": "))
        return result_in(self.request, self.point) or state


@dataclass(frozen=True)
class Queue:
    """Submits the runs of a study. Runs that were submitted before are left unchanged.

    A search limits its active runs itself. In a listed study each run starts after the run
    ``at_once`` places earlier, and runs beyond the queue's limit are not submitted.
    """

    request: StudyRequest
    chains: list[str] = field(default_factory=list)
    active_runs: Counter[str] = field(default_factory=Counter)  # active runs by queue

    def __call__(self, point: Point) -> Begin:
        arguments, path = self.request.arguments_of(point), self.request.folder_of(point)
        recipe = compose_recipe(arguments)
        if (checked := check_submission(recipe, arguments, path)) is not None:
            self._check_jobs(checked)
            return partial(self._submit, checked, point)
        user = read_user(recipe.cluster.name, arguments.site)
        settings = job_settings(recipe, user, repository=ROOT, run=path)
        if settings.runs_at_once is not None:
            queued = status_of(path, scheduler_for(recipe.cluster)).queued
            self.active_runs[settings.queue] += bool(queued)
        return lambda: SubmittedRun(self.request, point, settings.runs_at_once)

    def _check_jobs(self, checked: CheckedRun) -> None:
        study, jobs, scheduler = self.request.study, checked.settings.jobs, checked.scheduler
        if isinstance(study, SearchStudy) or len(study.points) <= study.queue.at_once:
            return
        if jobs > 1 and not scheduler.arrays:
            problem = f"{jobs} jobs per run: {scheduler.name} would start the next run after "
            remedy = "set cluster.jobs=1, or remove at_most"
            raise RecipeError("at_most", f"{problem}the first job", remedy)

    def _submit(self, checked: CheckedRun, point: Point) -> Poll:
        study, settings, after = self.request.study, checked.settings, None
        if isinstance(study, ListedStudy):
            most, there = settings.runs_at_once, self.active_runs[settings.queue]
            if most is not None and there >= most:
                why = f"not submitted: {settings.queue} accepts {most:,} runs per user; "
                why += "repeat the command after other runs end"
                log_line(f"[{checked.path.name}] {why}")
                return lambda: PointOutcome(None, why)
            at_once = study.queue.at_once
            after = self.chains[-at_once] if len(self.chains) >= at_once else None
        self.chains.append(submit_run(checked, after=after))
        self.active_runs[settings.queue] += 1
        wait = f", after {after}" if after else ""
        log_line(f"[{checked.path.name}] submitted {self.chains[-1]}{wait}")
        return SubmittedRun(self.request, point, settings.runs_at_once)


def check_submission(recipe: Recipe, arguments: Arguments, path: Path) -> CheckedRun | None:
    """Check a point's run before submission. Return None if it was submitted before.

    If its submission was interrupted and the queue has no job of it, it is submitted again. A
    run with children is refused.
    """
    if recipe.children:
        problem = "a sweep does not support children"
        raise RecipeError("children", problem, "submit each run separately")
    chain = Jobs(RunFolder(path)).load_chain()
    if chain.submissions and not chain.job_ids:
        arguments = replace(arguments, again=True)
    try:
        check_resubmission(recipe, path, arguments)
    except SubmittedError as error:
        log_line(f"[{path.name}] not submitted: {error.problem}; {error.remedy}")
        return None
    return check_run(recipe, arguments, path)


def plan_point(request: StudyRequest, point: Point) -> PointOutcome:
    """Plan a point. A refused point has no figure; a layout that does not fit has one."""
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
        return PointOutcome(None, f"{error.path}: {error.problem}")


def _planned(request: StudyRequest, point: Point) -> tuple[Mapping[str, Any], str]:
    """Return a plan's JSON with the derived numbers, and why its layout does not fit."""
    recipe = compose_recipe(request.arguments_of(point))
    plan = plan_recipe(recipe)
    unfit = plan.memory.memory_verdict == "does_not_fit"
    why = f"does not fit: {plan.memory.peak_bytes / 2**30:.1f} GiB per device" if unfit else ""
    return {**plan.as_json(), "derived": recipe.derived_numbers.model_dump(mode="json")}, why
