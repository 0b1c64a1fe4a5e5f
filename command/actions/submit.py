"""Check all that a login node can, write the run folder and its job, and hand it over."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.copies.venv import archive_venv
from cluster.job import JobSettings, job_settings, run_folder
from cluster.records import Jobs, now
from cluster.render import render
from cluster.scheduler import Scheduler, SchedulerError, check_present
from cluster.schedulers import scheduler_of
from cluster.status import status_of
from cluster.user import User, read_user
from command.actions.prepare import prepare_data
from command.arguments import ROOT, Arguments
from command.compose import compose_recipe
from command.outcome import ActionResult
from components.config.rules.check import warnings_of
from components.config.schema.recipe import Recipe, read_recipe
from components.errors import RecipeError
from components.planner.plan import Plan, plan_recipe
from components.run.folder import RunFolder, create_run_folder
from components.run.ownership import check_links
from components.run.provenance import write_provenance
from components.run.single_writer import check_not_trained
from components.terminal import say, tell
from components.train.launch import check_builds

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A run that passed every check of a login node and is not submitted yet."""

    words: tuple[str, ...]
    site: Mapping[str, Any]
    recipe: Recipe
    settings: JobSettings
    scheduler: Scheduler
    path: Path


def run(arguments: Arguments) -> ActionResult:
    """Submit a run, or again one whose chain has ended."""
    recipe = compose_recipe(arguments)
    user = read_user(recipe.cluster.name, arguments.site)
    path = run_folder(recipe, user, arguments.folders.get("run"), ROOT)
    check_links(path, "run")
    check_not_submitted(recipe, path, again=arguments.again)
    check_not_trained(path, "run")
    ready = check(recipe, arguments, path)
    chain = hand_over(ready, after=None)
    _tell(ready, chain)
    return ActionResult(run=path)


def check(recipe: Recipe, arguments: Arguments, path: Path) -> Ready:
    """Check all that can fail before a queue: the recipe, the site, the plan, every part.

    Raises:
        RecipeError: whatever is wrong, or the user has not said what the site asks for.
    """
    user = read_user(recipe.cluster.name, arguments.site)
    scheduler = scheduler_of(recipe.cluster)
    settings = job_settings(recipe, user, repository=ROOT, run=path)
    settings.check_complete()
    for note in settings.notes:
        say(f"note: {note}")
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    _check_plan(recipe, user, force=arguments.force)
    check_builds(recipe)
    return Ready(
        words=arguments.words,
        site=arguments.site,
        recipe=recipe,
        settings=settings,
        scheduler=scheduler,
        path=path,
    )


def hand_over(ready: Ready, *, after: str | None) -> str:
    """Write the run folder with its script and submit it, to begin when ``after`` has ended.

    Raises:
        RecipeError: the scheduler is not here, or refuses the script.
    """
    _archive(ready.settings)
    jobs = Jobs(_folder(ready.recipe, ready.site, ready.path, ready.words))
    _write_script(jobs, ready.settings)
    check_present(ready.scheduler, jobs.script)
    jobs.cancelled.unlink(missing_ok=True)
    at = now()
    try:
        chain = ready.scheduler.submit(jobs.script, after=after)
    except SchedulerError as error:
        remedy = f"the script is {jobs.script}; site.* and cluster.* change what it asks for"
        raise RecipeError("cluster.scheduler", str(error), remedy) from None
    jobs.add_submission(chain, at=at, words=ready.words, jobs=ready.settings.jobs)
    return chain


def check_not_submitted(recipe: Recipe, path: Path, *, again: bool) -> None:
    """Refuse to hand over twice what waits, runs, has finished or was not asked for again.

    Raises:
        RecipeError: that is so, or the scheduler cannot be asked.
    """
    submissions = Jobs(RunFolder(path)).submissions()
    if not submissions:
        return
    scheduler = scheduler_of(recipe.cluster)
    check_present(scheduler, None)
    status = status_of(path, scheduler)
    ways = f"action=status run={path} tells more"
    if status.state == "finished":
        raise RecipeError("run", f"the run in {path} has finished", "name another run=FOLDER")
    if status.state == "unknown":
        remedy = "try again later; another run=FOLDER begins anew"
        raise RecipeError("cluster.scheduler", status.why, remedy)
    if status.queued:
        states = ", ".join(f"{job.job} {job.state}" for job in status.queued)
        way = f"{ways}, action=cancel takes it back"
        raise RecipeError("run", f"{path} is submitted: {states}", way)
    if not again:
        problem = f"{path} was submitted as {status.chain}, which has ended: {status.state}"
        raise RecipeError("run", problem, f"{ways}; again=true submits it once more")


def _check_plan(recipe: Recipe, user: User, *, force: bool) -> None:
    """Refuse what will not fit, and what costs more than the user wants to spend."""
    if isinstance(recipe.cluster.hardware, str):
        return
    plan = plan_recipe(recipe)
    memory = plan.memory
    if memory.verdict == "does_not_fit" and not force:
        raise RecipeError(
            "parallelism",
            f"the plan needs {memory.peak / GIB:.1f} GiB a device of "
            f"{memory.usable_bytes / GIB:.1f}",
            "change the layout (action=plan shows what is large), or set force=true",
        )
    _check_budget(recipe, plan, user)


def _check_budget(recipe: Recipe, plan: Plan, user: User) -> None:
    if user.device_hours is None or plan.bill is None or recipe.cluster.smoke:
        return
    if plan.bill.device_hours > user.device_hours:
        raise RecipeError(
            "site.device_hours",
            f"{user.device_hours:,.0f}, but the plan says {plan.bill.device_hours:,.0f} "
            "device-hours",
            "lower budget.total_tokens, or raise site.device_hours",
        )


def _archive(settings: JobSettings) -> None:
    """Make here, where no nodes wait for it, the archive that the job copies to its nodes."""
    if settings.imports == "node_local" and settings.venv is not None:
        archive = archive_venv(Path(settings.venv))
        say(f"copied to each node: {archive}, {archive.stat().st_size / GIB:.1f} GiB")


def _folder(
    recipe: Recipe, site: Mapping[str, Any], path: Path, words: Sequence[str]
) -> RunFolder:
    """Make the run folder, or take the one that holds this very recipe."""
    folder = RunFolder(path)
    if not (folder.recipe.exists() and read_recipe(folder.recipe) == recipe):
        data = prepare_data(recipe, site)
        folder = create_run_folder(recipe, path)
        folder.write_json("data.json", data)
        write_provenance(folder, words)
    for name in ("jobs", "ranks"):
        (folder.path / name).mkdir(exist_ok=True)
    return folder


def _write_script(jobs: Jobs, settings: JobSettings) -> None:
    beside = jobs.script.with_suffix(f".{os.getpid()}")
    beside.write_text(render(settings), "utf-8")
    beside.replace(jobs.script)


def _tell(ready: Ready, chain: str) -> None:
    settings = ready.settings
    jobs = f"a chain of at most {settings.jobs} jobs" if settings.jobs > 1 else "one job"
    tell(
        f"submitted {chain}: {jobs} of {settings.nodes:,} nodes for {settings.walltime}\n"
        f"script: {ready.path}/jobs/job.sh\n"
        f"run: {ready.path}\n"
        f"next: python run.py action=status run={ready.path}"
    )
    if not ready.recipe.cluster.smoke:
        say("a try of minutes on two nodes: the same command with cluster.smoke=true")
