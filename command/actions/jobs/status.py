"""Print the status of runs, submitted or on this machine; lift what their jobs avoid."""

from cluster.begin import avoid
from cluster.chain_events import ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.records import Jobs, now
from cluster.scheduler import SchedulerError, check_present
from command.arguments import Arguments
from command.jobs.status import print_run, print_runs
from command.recipe.path_checks import named_runs
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.terminal import tell


def run(arguments: Arguments) -> None:
    """Print one run's jobs, or a table of all runs of a sweep's folder or of ``runs=[...]``.

    With ``exclude=none`` their jobs, those that wait and later ones, may use all nodes again.
    """
    folders = named_runs(arguments)
    if arguments.exclude is not None:
        for folder in folders:
            _readmit(RunFolder(folder))
    elif folders == [arguments.run]:
        print_run(folders[0], arguments.output)
    else:
        print_runs(folders, arguments.output)


def _readmit(folder: RunFolder) -> None:
    scheduler, jobs = scheduler_for(read_recipe(folder.recipe).cluster), Jobs(folder)
    ids, nodes = jobs.ids(scheduler), tuple(jobs.chain().avoided)
    if not nodes:
        tell(f"{folder.path} avoids no nodes")
        return
    try:
        check_present(scheduler, None)
        for chain in ids:
            avoid(scheduler, jobs, [], chain)
    except SchedulerError as error:
        raise RecipeError("cluster.scheduler", str(error), "try again later") from None
    jobs.note(ReadmittedEvent(at=now(), nodes=nodes, why="a person asked for it"))
    tell(f"{folder.path}: its jobs may use {', '.join(nodes)} again")
