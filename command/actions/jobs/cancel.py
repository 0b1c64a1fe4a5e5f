"""Take back what waits, and stop what runs after it has saved."""

from pathlib import Path

from cluster.chain_events import CancelledEvent
from cluster.clients import scheduler_for
from cluster.records import Jobs, now
from cluster.scheduler import (
    NotOwnError,
    SchedulerError,
    check_present,
)
from cluster.scheduler_command import cached_answers
from cluster.status import queue_of
from command.arguments import Arguments
from command.recipe.path_checks import named_runs
from command.run_tree.nodes import job_of, logs_of, nodes_of, queued_jobs, root_of
from components.config.check import read_recipe
from components.config.children import CHILDREN
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.writer_lock import submission_lock
from components.terminal import tell


def run(arguments: Arguments) -> None:
    """Cancel the chains of the named runs; ``force=true`` ends running jobs unsaved."""
    for path in named_runs(arguments):
        try:
            with cached_answers():
                _cancel(RunFolder(path), force=arguments.force)
                _cancel_tree(path, force=arguments.force)
        except NotOwnError as error:
            remedy = "nothing was cancelled: the run folder says what is another's"
            raise RecipeError(str(path), str(error), remedy) from None
        except SchedulerError as error:
            raise RecipeError("cluster.scheduler", str(error), "try again later") from None


def _cancel_tree(run: Path, *, force: bool) -> None:
    """Cancel what was submitted of the tree below a trunk; what was not waits no more."""
    if not read_recipe(run / "recipe.json").children or root_of(run) != run.absolute():
        return
    scheduler = scheduler_for(read_recipe(run / "recipe.json").cluster)
    with submission_lock(root_of(run) / CHILDREN):  # a job may submit a node at this moment
        for node in nodes_of(root_of(run)):
            if node.child.kind == "run":
                if not node.is_done and Jobs(RunFolder(node.path)).chain().submissions:
                    _cancel(RunFolder(node.path), force=force)
            elif queued_jobs(node):
                scheduler.cancel(job_of(node) or "", logs_of(node), running=force)


def _cancel(folder: RunFolder, *, force: bool) -> None:
    scheduler, submitted = scheduler_for(read_recipe(folder.recipe).cluster), Jobs(folder)
    if not (submitted.chain().submissions or submitted.ids(scheduler)):
        problem = f"{folder.path} was never submitted"
        raise RecipeError("run", problem, "Ctrl-C stops a run of this terminal")
    check_present(scheduler, None)
    with submission_lock(folder.path):
        ids = submitted.ids(scheduler)
        jobs = queue_of(scheduler, ids, submitted)
        submitted.note(CancelledEvent(at=now()))  # for a job that begins meanwhile
        scheduler.cancel("", submitted.path, running=force)
    for job in jobs:
        said = "cancelled"
        if job.state == "running" and not force:
            folder.stop.touch()
            said = "saves after the step it is in, then ends"
        tell(f"{job.job}: {said}")
    if not jobs:
        tell(f"{', '.join(ids) or folder.path}: nothing of it waits or runs")
