"""Check a run on the login node, write its folder and job script, and submit it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.chain_events import RefusedEvent, SubmitEvent, SubmittedEvent
from cluster.clients import scheduler_for
from cluster.copies.venv import archive_venv
from cluster.job import JobSettings, job_settings, render
from cluster.records import Jobs, now
from cluster.scheduler import NoAnswerError, Scheduler, SchedulerError, check_present
from cluster.status import status_of
from cluster.user import User, read_user
from command.arguments import ROOT, Arguments
from command.continuation import continue_run, describe, renew_data
from command.prepared_data import prepare_data
from command.run_tree.folders import create_child_folders
from command.run_tree.nodes import root_of
from command.start_data import check_start_data
from components.checkpoint.metadata import newest_checkpoint
from components.checkpoint.start import find_start, put_start
from components.command_line import command_line
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.resolve import check_continues
from components.config.rules.check import warnings_of
from components.data.files import write_atomically
from components.errors import RecipeError
from components.planner.result import Plan
from components.planner.tree import plan_tree
from components.run.folder import RunFolder, check_unused, create_run_folder
from components.run.ownership import is_own
from components.run.writer_lock import submission_lock, train_alone
from components.terminal import say

GIB = 2**30
NONE: Mapping[str, Recipe] = {}


class SubmittedError(RecipeError):
    """A run is left as it is: it waits, runs, has finished, or has ended."""


@dataclass(frozen=True)
class CheckedRun:
    """A run that passed every check of a login node and is not submitted yet."""

    arguments: Arguments
    recipe: Recipe
    settings: JobSettings
    scheduler: Scheduler
    path: Path


def check_own(path: Path) -> None:
    """Refuse the run folder of somebody else, whose recipe would write a job script."""
    if not is_own(RunFolder(path).recipe):
        problem = f"{path} was not made by you here, and its recipe would write a job script"
        remedy = f"name its recipe yourself: recipe=NAME cluster=NAME run={path}"
        raise RecipeError("resume", problem, remedy)


def check_run(
    recipe: Recipe, arguments: Arguments, path: Path, children: Mapping[str, Recipe] = NONE
) -> CheckedRun:
    """Check all that can fail before a queue: the recipe, the site, the plan, every part.

    What it may cost is what it costs with the runs that are its ``children``.

    Raises:
        RecipeError: whatever is wrong, or the user has not said what the site asks for.
    """
    user = read_user(recipe.cluster.name, arguments.site)
    scheduler = scheduler_for(recipe.cluster)
    node = None if root_of(path) == path.absolute() else path.name
    settings = job_settings(recipe, user, repository=ROOT, run=path, node=node)
    settings.check_complete()
    for note in settings.notes:
        say(f"note: {note}")
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    if settings.plan is not None:
        _check_plan(recipe, settings.plan, user, children, force=arguments.force)
    from components.train.local_checks import check_builds  # imports torch

    check_builds(recipe)
    return CheckedRun(arguments, recipe, settings, scheduler, path)


def submit_run(
    checked: CheckedRun, *, after: str | None, children: Mapping[str, Recipe] = NONE
) -> str:
    """Write the run folder with its script and submit it, to begin when ``after`` has ended.

    The folders of the runs that are its ``children`` are made with it: its jobs submit them.

    Raises:
        RecipeError: the scheduler is not here, or refuses the script.
    """
    settings = checked.settings
    if settings.cluster.imports == "node_local" and settings.venv is not None:
        archive = archive_venv(Path(settings.venv))  # here, where no nodes wait for it
        say(f"copied to each node: {archive}, {archive.stat().st_size / GIB:.1f} GiB")
    folder, recipe = RunFolder(checked.path), checked.recipe
    if new := not folder.recipe.exists():
        check_unused(folder.path)
        data = prepare_data(recipe, checked.arguments.site)
        check_start_data(recipe, data)
        start = find_start(recipe)
    with submission_lock(folder.path):
        check_resubmission(recipe, folder.path, checked.arguments)
        if new and not folder.recipe.exists():
            create_run_folder(recipe, folder.path)
            describe(folder, data, checked.arguments)
            put_start(folder, start)
        else:
            _continue(folder, checked)
        if children:
            create_child_folders(folder.path, children, checked.arguments.site)
        return _submit(folder, checked, after)


def _continue(folder: RunFolder, checked: CheckedRun) -> None:
    """Let the run go on by the recipe to submit, and from the checkpoint that is named."""
    before, recipe = read_recipe(folder.recipe), checked.recipe
    if recipe.data != before.data or newest_checkpoint(folder.checkpoints) is None:
        renew_data(folder, recipe, checked.arguments)
    with train_alone(folder.path, "resume", say):
        continue_run(folder, before, recipe, checked.arguments, reads=False)


def _submit(folder: RunFolder, checked: CheckedRun, after: str | None) -> str:
    """Write the script, hand it to the scheduler, and record both."""
    settings, words = checked.settings, checked.arguments.words
    for name in ("jobs", "ranks"):
        (folder.path / name).mkdir(exist_ok=True)
    jobs = Jobs(folder)
    write_atomically(jobs.script, render(settings))
    check_present(checked.scheduler, jobs.script)
    # Told first: a job may begin before its id is known here.
    jobs.note(SubmitEvent(at=now(), words=tuple(words), jobs=settings.jobs))
    try:
        chain = checked.scheduler.submit(jobs.script, after=after)
    except NoAnswerError as error:  # the record stays open: it is no refusal
        way = f"it may have taken {settings.name}: action=status run={folder.path} finds it"
        raise RecipeError("cluster.scheduler", str(error), way) from None
    except SchedulerError as error:
        jobs.note(RefusedEvent(at=now(), why=str(error)))
        remedy = f"the script is {jobs.script}; site.* and cluster.* change what it asks for"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None
    jobs.note(SubmittedEvent(at=now(), chain=chain))
    return chain


def check_resubmission(recipe: Recipe, path: Path, arguments: Arguments) -> None:
    """Refuse to submit a run that waits, runs or has finished, or to change its mathematics.

    Raises:
        SubmittedError: it is not to be submitted, or not without ``again=true``.
        RecipeError: the scheduler cannot be asked, or the folder has other mathematics.
    """
    folder = RunFolder(path)
    if not folder.recipe.exists():
        return
    before, chain = read_recipe(folder.recipe), Jobs(folder).chain()
    if chain.submissions or chain.ids:
        cluster = recipe.cluster if before.cluster.scheduler == "none" else before.cluster
        scheduler = scheduler_for(cluster)
        moved = cluster.name != recipe.cluster.name and shutil.which(scheduler.program) is None
        if not (moved and arguments.again):  # from a cluster that cannot be asked from here
            check_present(scheduler, None)
            _check_ended(path, scheduler, arguments, known=bool(chain.ids))
    check_continues(before, recipe, path)


def _check_ended(
    path: Path, scheduler: Scheduler, arguments: Arguments, *, known: bool
) -> None:
    """Refuse a run with jobs in the queue, and one that ended, without ``again`` or ``resume``.

    It is not ``known`` whether the scheduler took the last submission where its answer is
    missing: if the queue has no job of the run, ``again=true`` submits it.
    """
    status = status_of(path, scheduler)
    ways = f"{command_line('action=status', f'run={path}')} tells more"
    if status.state == "finished" and arguments.at_tokens is None:
        problem = f"the run in {path} has finished"
        raise SubmittedError("run", problem, "name another run=FOLDER")
    if status.queued is None:
        remedy = "try again later; another run=FOLDER begins anew"
        raise RecipeError("cluster.scheduler", status.why, remedy)
    if status.queued:
        states = ", ".join(f"{job.job} {job.state}" for job in status.queued)
        way = f"{ways}, action=cancel takes it back"
        raise SubmittedError("run", f"{path} is submitted: {states}", way)
    if not known and not arguments.again:
        problem = f"whether the scheduler took {path} is not known: its answer is missing"
        remedy = "the queue has no job of it; again=true submits it once more"
        raise SubmittedError("run", problem, remedy)
    if not arguments.again and arguments.resume is None:
        problem = f"{path} was submitted as {status.chain}, which has ended: {status.state}"
        raise SubmittedError("run", problem, f"{ways}; again=true submits it once more")


def _check_plan(
    recipe: Recipe, plan: Plan, user: User, children: Mapping[str, Recipe], *, force: bool
) -> None:
    """Refuse what will not fit, and what costs more than the user wants to spend."""
    peak, usable = plan.fullest.peak / GIB, plan.fullest.usable_bytes / GIB
    if plan.fullest.verdict == "does_not_fit" and not force:
        problem = f"the plan needs {peak:.1f} GiB a device of {usable:.1f}"
        remedy = "change the layout (action=plan shows what is large), or set force=true"
        raise RecipeError("parallelism", problem, remedy)
    if user.device_hours is None or plan.bill is None or recipe.cluster.smoke:
        return
    hours = plan_tree(recipe, plan.bill, children).device_hours or plan.bill.device_hours
    if hours > user.device_hours:
        problem = f"{user.device_hours:,.0f}, but the plan says {hours:,.0f} device-hours"
        remedy = "lower budget.total_tokens, or raise site.device_hours"
        raise RecipeError("site.device_hours", problem, remedy)
