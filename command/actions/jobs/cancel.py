"""Take back what waits, and stop what runs after it has saved."""

from cluster.chain_events import CancelledEvent
from cluster.records import Jobs, now
from cluster.scheduler import NotOwnError, SchedulerError, check_present, scheduler_of
from cluster.status import queue_of
from command.arguments import Arguments
from command.recipe.path_checks import named_runs
from components.config.schema.recipe import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.terminal import tell


def run(arguments: Arguments) -> None:
    """Cancel the chains of the named runs; ``force=true`` ends running jobs unsaved."""
    for path in named_runs(arguments):
        try:
            _cancel(RunFolder(path), force=arguments.force)
        except NotOwnError as error:
            remedy = "nothing was cancelled: the run folder says what is another's"
            raise RecipeError(str(path), str(error), remedy) from None
        except SchedulerError as error:
            raise RecipeError("cluster.scheduler", str(error), "try again later") from None


def _cancel(folder: RunFolder, *, force: bool) -> None:
    scheduler, submitted = scheduler_of(read_recipe(folder.recipe).cluster), Jobs(folder)
    ids = submitted.ids(scheduler)
    if not ids:
        problem = f"{folder.path} was never submitted"
        raise RecipeError("run", problem, "Ctrl-C stops a run of this terminal")
    check_present(scheduler, None)
    jobs = queue_of(scheduler, ids, submitted)
    submitted.note(CancelledEvent(at=now()))  # for a job that begins meanwhile
    for chain in ids:
        scheduler.cancel(chain, submitted.path, running=force)
    for job in jobs:
        said = "cancelled"
        if job.state == "running" and not force:
            folder.stop.touch()
            said = "saves after the step it is in, then ends"
        tell(f"{job.job}: {said}")
    if not jobs:
        tell(f"{ids[0]}: nothing of it waits or runs")
