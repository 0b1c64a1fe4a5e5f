"""Take back what waits, and stop what runs after it has saved."""

from cluster.records import Jobs
from cluster.scheduler import NotOwnError, SchedulerError, check_present, scheduler_of
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
    chain = submitted.newest(scheduler)
    if chain is None:
        problem = f"{folder.path} was never submitted"
        raise RecipeError("run", problem, "Ctrl-C stops a run of this terminal")
    check_present(scheduler, None)
    jobs = scheduler.states(chain, submitted.path)
    submitted.cancelled.touch()  # for a job that has not read a stop file when it begins
    scheduler.cancel(chain, submitted.path, running=force)
    for job in jobs:
        said = "cancelled"
        if job.state == "running" and not force:
            folder.stop.touch()
            said = "saves after the step it is in, then ends"
        tell(f"{job.job}: {said}")
    if not jobs:
        tell(f"{chain}: nothing of it waits or runs")
