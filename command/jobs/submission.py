"""Check a run on the login node, write its folder and job script, and submit it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.chain import RefusedEvent, SubmitEvent, SubmittedEvent
from cluster.clients import scheduler_for
from cluster.copies.venv import archive_venv
from cluster.job import JobSettings, job_settings, render_job_script
from cluster.records import Jobs, utc_now
from cluster.scheduler import NoAnswerError, Scheduler, SchedulerError, check_present
from cluster.status import status_of
from cluster.user import User, read_user
from command.arguments import ROOT, Arguments
from command.continuation import continue_run, renew_data, write_data_records
from command.prepared_data import prepare_run_data
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
from components.terminal import log_line

GIB = 2**30
NONE: Mapping[str, Recipe] = {}


class SubmittedError(RecipeError):
    """A run is not submitted: it is queued, is running, has finished, or has ended."""


@dataclass(frozen=True)
class CheckedRun:
    """A run that passed all login-node checks and is not submitted yet."""

    arguments: Arguments
    recipe: Recipe
    settings: JobSettings
    scheduler: Scheduler
    path: Path


def check_own(path: Path) -> None:
    """Refuse another user's run folder, because its recipe would write a job script."""
    if not is_own(RunFolder(path).recipe):
        problem = f"{path} was received, and its recipe would define the job script"
        remedy = f"choose the recipe yourself: recipe=NAME cluster=NAME run={path}"
        raise RecipeError("resume", problem, remedy)


def check_run(
    recipe: Recipe, arguments: Arguments, path: Path, children: Mapping[str, Recipe] = NONE
) -> CheckedRun:
    """Check everything that can fail before the queue: recipe, site, plan and model parts.

    The cost limit includes the ``children`` runs.
    """
    user = read_user(recipe.cluster.name, arguments.site)
    scheduler = scheduler_for(recipe.cluster)
    node = None if root_of(path) == path.absolute() else path.name
    settings = job_settings(recipe, user, repository=ROOT, run=path, node=node)
    settings.check_complete()
    for note in settings.notes:
        log_line(f"note: {note}")
    for warning in warnings_of(recipe):
        log_line(f"warning: {warning}")
    if settings.plan is not None:
        _check_plan(recipe, settings.plan, user, children, force=arguments.force)
    from components.train.local_checks import check_builds  # imports torch

    check_builds(recipe)
    return CheckedRun(arguments, recipe, settings, scheduler, path)


def submit_run(
    checked: CheckedRun, *, after: str | None, children: Mapping[str, Recipe] = NONE
) -> str:
    """Write the run folder and its script and submit it, to start after job ``after``.

    The folders of its ``children`` are created too: its jobs submit them.
    """
    settings = checked.settings
    if settings.cluster.imports == "node_local" and settings.venv is not None:
        archive = archive_venv(Path(settings.venv))  # here, where no nodes wait for it
        log_line(f"copied to each node: {archive}, {archive.stat().st_size / GIB:.1f} GiB")
    folder, recipe = RunFolder(checked.path), checked.recipe
    if new := not folder.recipe.exists():
        check_unused(folder.path)
        data = prepare_run_data(recipe, checked.arguments)
        check_start_data(recipe, data)
        start = find_start(recipe)
    with submission_lock(folder.path):
        check_resubmission(recipe, folder.path, checked.arguments)
        if new and not folder.recipe.exists():
            create_run_folder(recipe, folder.path)
            write_data_records(folder, data, checked.arguments)
            put_start(folder, start)
        else:
            _continue(folder, checked)
        if children:
            create_child_folders(folder.path, children, checked.arguments.site)
        return _submit(folder, checked, after)


def _continue(folder: RunFolder, checked: CheckedRun) -> None:
    """Continue the run with the submitted recipe, from the named checkpoint."""
    before, recipe = read_recipe(folder.recipe), checked.recipe
    if recipe.data != before.data or newest_checkpoint(folder.checkpoints) is None:
        renew_data(folder, recipe, checked.arguments)
    with train_alone(folder.path, "resume"):
        continue_run(folder, before, recipe, checked.arguments, reads=False)


def _submit(folder: RunFolder, checked: CheckedRun, after: str | None) -> str:
    """Write the script, submit it to the scheduler, and record both."""
    settings, words = checked.settings, checked.arguments.words
    for name in ("jobs", "ranks"):
        (folder.path / name).mkdir(exist_ok=True)
    jobs = Jobs(folder)
    write_atomically(jobs.script, render_job_script(settings))
    check_present(checked.scheduler, jobs.script)
    # Recorded first: the job may start before its id is known here.
    jobs.append_events(SubmitEvent(at=utc_now(), words=tuple(words), jobs=settings.jobs))
    try:
        chain = checked.scheduler.submit_script(jobs.script, after=after)
    except NoAnswerError as error:  # the record stays open: no answer is no refusal
        hint = f"{settings.name} may be queued: check action=status run={folder.path}"
        raise RecipeError("cluster.scheduler", str(error), hint) from None
    except SchedulerError as error:
        jobs.append_events(RefusedEvent(at=utc_now(), why=str(error)))
        remedy = f"change site.* or cluster.*; the rejected script is {jobs.script}"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None
    jobs.append_events(SubmittedEvent(at=utc_now(), chain=chain))
    return chain


def check_resubmission(recipe: Recipe, path: Path, arguments: Arguments) -> None:
    """Refuse to submit a queued, running or finished run, or to change its mathematics.

    Raises:
        SubmittedError: the run cannot be submitted, or only with ``again=true``.
        RecipeError: the scheduler is not reachable, or the folder has other mathematics.
    """
    folder = RunFolder(path)
    if not folder.recipe.exists():
        return
    before, chain = read_recipe(folder.recipe), Jobs(folder).load_chain()
    if chain.submissions or chain.job_ids:
        cluster = recipe.cluster if before.cluster.scheduler == "none" else before.cluster
        scheduler = scheduler_for(cluster)
        moved = cluster.name != recipe.cluster.name and shutil.which(scheduler.program) is None
        if not (moved and arguments.again):  # from a cluster that is not reachable from here
            check_present(scheduler, None)
            _check_ended(path, scheduler, arguments, known=bool(chain.job_ids))
    check_continues(before, recipe, path)


def _check_ended(
    path: Path, scheduler: Scheduler, arguments: Arguments, *, known: bool
) -> None:
    """Refuse a run with queued jobs, and an ended run without ``again`` or ``resume``.

    ``known`` is false if the scheduler's answer to the last submission is missing. If the queue
    then has no job of the run, ``again=true`` submits it.
    """
    status = status_of(path, scheduler)
    status_hint = f"details: {command_line('action=status', f'run={path}')}"
    if status.state == "finished" and arguments.at_tokens is None:
        problem = f"the run in {path} has finished"
        raise SubmittedError("run", problem, "choose another run=FOLDER")
    if status.queued is None:
        remedy = "try again later; choose another run=FOLDER for a new run"
        raise RecipeError("cluster.scheduler", status.why, remedy)
    if status.queued:
        states = ", ".join(f"{job.job} {job.state}" for job in status.queued)
        hint = f"{status_hint}; to cancel the run: action=cancel"
        raise SubmittedError("run", f"{path} is submitted: {states}", hint)
    if not known and not arguments.again:
        problem = f"the scheduler did not confirm the submission of {path}"
        remedy = "the queue has no job of this run; again=true submits the run again"
        raise SubmittedError("run", problem, remedy)
    if not arguments.again and arguments.resume is None:
        problem = f"{path} was submitted as {status.chain}, and has ended: {status.state}"
        raise SubmittedError("run", problem, f"{status_hint}; again=true submits the run again")


def _check_plan(
    recipe: Recipe, plan: Plan, user: User, children: Mapping[str, Recipe], *, force: bool
) -> None:
    """Refuse a plan that does not fit, or that costs more than the user's limit."""
    memory = plan.largest_memory
    if not memory.is_within_limit and not force:
        peak, usable = memory.fullest_rank_bytes / GIB, memory.usable_bytes / GIB
        problem = f"the plan needs {peak:.1f} GiB per device, of {usable:.1f} usable"
        remedy = "change the layout (action=plan lists the memory), or set force=true"
        raise RecipeError("parallelism", problem, remedy)
    if user.device_hours is None or plan.cost_estimate is None or recipe.cluster.smoke:
        return
    hours = (
        plan_tree(recipe, plan.cost_estimate, children).device_hours
        or plan.cost_estimate.device_hours
    )
    if hours > user.device_hours:
        problem = f"{user.device_hours:,.0f}, but the plan needs {hours:,.0f} device-hours"
        remedy = "lower budget.total_tokens, or raise site.device_hours"
        raise RecipeError("site.device_hours", problem, remedy)
