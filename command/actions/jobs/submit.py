"""Check all that a login node can, write the run folder and its job, and hand it over."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.chain_events import RefusedEvent, SubmitEvent, SubmittedEvent
from cluster.copies.venv import archive_venv
from cluster.job import JobSettings, job_settings, render, run_folder
from cluster.records import Jobs, now
from cluster.scheduler import (
    NoAnswerError,
    Scheduler,
    SchedulerError,
    check_present,
    scheduler_of,
)
from cluster.status import status_of
from cluster.user import User, read_user
from command.actions.prepare import prepare_data
from command.arguments import ROOT, Arguments
from command.compose import compose_tree
from command.outcome import ActionResult
from command.parent_data import check_parent_data
from command.parent_run import beginning_of
from command.tree.course import plant
from command.tree.nodes import nodes_of, root_of
from components.checkpoint.metadata import newest_checkpoint
from components.command_line import command_line
from components.config.rules.check import warnings_of
from components.config.schema.recipe import Recipe, read_recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.planner.tree import plan_tree
from components.run.folder import RunFolder, create_run_folder
from components.run.ownership import check_links
from components.run.provenance import write_provenance
from components.run.writer_lock import check_not_trained
from components.terminal import say, tell
from components.train.launch import check_builds

GIB = 2**30
NONE: Mapping[str, Recipe] = {}


@dataclass(frozen=True)
class Ready:
    """A run that passed every check of a login node and is not submitted yet."""

    arguments: Arguments
    recipe: Recipe
    settings: JobSettings
    scheduler: Scheduler
    path: Path


def run(arguments: Arguments) -> ActionResult:
    """Submit a run, or again one whose chain has ended."""
    recipe, children = compose_tree(arguments)
    user = read_user(recipe.cluster.name, arguments.site)
    path = run_folder(recipe, user, arguments.run, ROOT)
    check_links(path, "run")
    if (standing := submitted_before(recipe, path, again=arguments.again)) is not None:
        raise standing
    check_not_trained(path, "run")
    ready = check(recipe, arguments, path, children)
    chain, settings = hand_over(ready, after=None, children=children), ready.settings
    jobs = f"a chain of at most {settings.jobs} jobs" if settings.jobs > 1 else "one job"
    tell(
        f"submitted {chain}: {jobs} of {settings.nodes:,} nodes for {settings.walltime}\n"
        f"script: {path}/jobs/job.sh\n"
        f"run: {path}\n"
        f"next: {command_line('action=status', f'run={path}')}"
    )
    if recipe.children:
        names = ", ".join(f"{one.name} ({one.child.kind})" for one in nodes_of(path))
        say(f"its jobs submit, each when its checkpoint is there: {names}")
    if not recipe.cluster.smoke:
        say("a try of minutes on two nodes: the same command with cluster.smoke=true")
    return ActionResult(run=path)


def check(
    recipe: Recipe, arguments: Arguments, path: Path, children: Mapping[str, Recipe] = NONE
) -> Ready:
    """Check all that can fail before a queue: the recipe, the site, the plan, every part.

    What it may cost is what it costs with the runs that are its ``children``.

    Raises:
        RecipeError: whatever is wrong, or the user has not said what the site asks for.
    """
    user = read_user(recipe.cluster.name, arguments.site)
    scheduler = scheduler_of(recipe.cluster)
    node = None if root_of(path) == path.absolute() else path.name
    settings = job_settings(recipe, user, repository=ROOT, run=path, node=node)
    settings.check_complete()
    for note in settings.notes:
        say(f"note: {note}")
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    _check_plan(recipe, user, children, force=arguments.force)
    check_builds(recipe)
    return Ready(arguments, recipe, settings, scheduler, path)


def hand_over(ready: Ready, *, after: str | None, children: Mapping[str, Recipe] = NONE) -> str:
    """Write the run folder with its script and submit it, to begin when ``after`` has ended.

    The folders of the runs that are its ``children`` are made with it: its jobs submit them.

    Raises:
        RecipeError: the scheduler is not here, or refuses the script.
    """
    settings, words = ready.settings, ready.arguments.words
    if settings.cluster.imports == "node_local" and settings.venv is not None:
        archive = archive_venv(Path(settings.venv))  # here, where no nodes wait for it
        say(f"copied to each node: {archive}, {archive.stat().st_size / GIB:.1f} GiB")
    # A new folder, or the one that holds this very recipe.
    folder = RunFolder(ready.path)
    new = not (folder.recipe.exists() and read_recipe(folder.recipe) == ready.recipe)
    begins = new or newest_checkpoint(folder.checkpoints) is None
    begin = beginning_of(ready.recipe) if begins else None
    if new:
        data = prepare_data(ready.recipe, ready.arguments.site)
        check_parent_data(ready.recipe, data)
        folder = create_run_folder(ready.recipe, ready.path)
        folder.write_json("data.json", data)
        write_provenance(folder, words)
    if begin is not None:
        begin(folder)
    if children:
        plant(folder.path, children, ready.arguments.site)
    for name in ("jobs", "ranks"):
        (folder.path / name).mkdir(exist_ok=True)
    jobs = Jobs(folder)
    beside = jobs.script.with_suffix(f".{os.getpid()}")
    beside.write_text(render(settings), "utf-8")
    beside.replace(jobs.script)
    check_present(ready.scheduler, jobs.script)
    # Told first: a job may begin before its id is known here.
    jobs.note(SubmitEvent(at=now(), words=tuple(words), jobs=settings.jobs))
    try:
        chain = ready.scheduler.submit(jobs.script, after=after)
    except NoAnswerError as error:  # the record stays open: it is no refusal
        way = f"it may have taken {settings.name}: look into the queue before you repeat this"
        raise RecipeError("cluster.scheduler", str(error), way) from None
    except SchedulerError as error:
        jobs.note(RefusedEvent(at=now(), why=str(error)))
        remedy = f"the script is {jobs.script}; site.* and cluster.* change what it asks for"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None
    jobs.note(SubmittedEvent(at=now(), chain=chain))
    return chain


def submitted_before(recipe: Recipe, path: Path, *, again: bool) -> RecipeError | None:
    """Return why a run is not handed over twice: it waits, runs, has finished, or has ended.

    So it is where nobody knows whether the scheduler took it: the command was cut short.

    Raises:
        RecipeError: the scheduler cannot be asked.
    """
    chain = Jobs(RunFolder(path)).chain()
    if not chain.ids:
        if again or not chain.submissions:
            return None
        problem = f"whether the scheduler took {path} is not known: its answer is missing"
        remedy = "look for it in the queue; again=true submits it once more"
        return RecipeError("run", problem, remedy)
    scheduler = scheduler_of(recipe.cluster)
    check_present(scheduler, None)
    status = status_of(path, scheduler)
    ways = f"{command_line('action=status', f'run={path}')} tells more"
    if status.state == "finished":
        return RecipeError("run", f"the run in {path} has finished", "name another run=FOLDER")
    if status.state == "unknown":
        remedy = "try again later; another run=FOLDER begins anew"
        raise RecipeError("cluster.scheduler", status.why, remedy)
    if status.queued:
        states = ", ".join(f"{job.job} {job.state}" for job in status.queued)
        way = f"{ways}, action=cancel takes it back"
        return RecipeError("run", f"{path} is submitted: {states}", way)
    if again:
        return None
    problem = f"{path} was submitted as {status.chain}, which has ended: {status.state}"
    return RecipeError("run", problem, f"{ways}; again=true submits it once more")


def _check_plan(
    recipe: Recipe, user: User, children: Mapping[str, Recipe], *, force: bool
) -> None:
    """Refuse what will not fit, and what costs more than the user wants to spend."""
    if isinstance(recipe.cluster.hardware, str):
        return
    plan = plan_recipe(recipe)
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
