"""Cancel queued jobs, and stop running jobs after they have saved."""

from pathlib import Path

from cluster.chain import CancelledEvent
from cluster.clients import scheduler_for
from cluster.records import Jobs, utc_now
from cluster.scheduler import NotOwnError, SchedulerError, check_present
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
from components.terminal import print_output


def run(arguments: Arguments) -> None:
    """Cancel the named runs' job chains. ``force=true`` ends running jobs unsaved."""
    for path in named_runs(arguments):
        try:
            with cached_answers():
                _cancel(RunFolder(path), force=arguments.force)
                _cancel_tree(path, force=arguments.force)
        except NotOwnError as error:
            remedy = "nothing was cancelled: the run folder has another user's job"
            raise RecipeError(str(path), str(error), remedy) from None
        except SchedulerError as error:
            raise RecipeError("cluster.scheduler", str(error), "try again later") from None


def _cancel_tree(run: Path, *, force: bool) -> None:
    """Cancel the submitted nodes of the tree below a root run."""
    recipe, root = read_recipe(run / "recipe.json"), run.absolute()
    if not recipe.children or root_of(run) != root:
        return
    scheduler = scheduler_for(recipe.cluster)
    with submission_lock(root / CHILDREN):  # a job may submit a node at this moment
        for node in nodes_of(root):
            if node.child.node_kind == "run":
                folder = RunFolder(node.folder_path)
                if not node.is_done and Jobs(folder).load_chain().submissions:
                    _cancel(folder, force=force)
            elif queued_jobs(node):
                scheduler.cancel_jobs(job_of(node) or "", logs_of(node), running=force)


def _cancel(folder: RunFolder, *, force: bool) -> None:
    scheduler, submitted = scheduler_for(read_recipe(folder.recipe).cluster), Jobs(folder)
    if not (submitted.load_chain().submissions or submitted.list_job_ids(scheduler)):
        problem = f"{folder.path} was never submitted"
        raise RecipeError("run", problem, "press Ctrl-C to stop a run in this terminal")
    check_present(scheduler, None)
    with submission_lock(folder.path):
        ids = submitted.list_job_ids(scheduler)
        jobs = queue_of(scheduler, ids, submitted)
        submitted.append_events(CancelledEvent(at=utc_now()))  # for a job that starts meanwhile
        scheduler.cancel_jobs("", submitted.path, running=force)
    for job in jobs:
        outcome = "cancelled"
        if job.state == "running" and not force:
            folder.stop.touch()
            outcome = "saves after the current step, then ends"
        print_output(f"{job.job}: {outcome}")
    if not jobs:
        print_output(f"{', '.join(ids) or folder.path}: no queued or running jobs")
