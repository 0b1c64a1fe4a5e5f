"""Let the jobs of a run use the nodes again that were excluded."""

from cluster.begin import avoid
from cluster.chain_events import ReadmittedEvent
from cluster.clients import scheduler_for
from cluster.records import Jobs, now
from cluster.scheduler import SchedulerError, check_present
from command.arguments import Arguments
from command.recipe.path_checks import named_runs
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.terminal import tell


def run(arguments: Arguments) -> None:
    """Readmit all nodes that the named runs avoid, for the jobs that wait and later ones."""
    for path in named_runs(arguments):
        try:
            _readmit(RunFolder(path))
        except SchedulerError as error:
            raise RecipeError("cluster.scheduler", str(error), "try again later") from None


def _readmit(folder: RunFolder) -> None:
    scheduler, jobs = scheduler_for(read_recipe(folder.recipe).cluster), Jobs(folder)
    ids, nodes = jobs.ids(scheduler), tuple(jobs.chain().avoided)
    if not nodes:
        tell(f"{folder.path} avoids no nodes")
        return
    check_present(scheduler, None)
    for chain in ids:
        avoid(scheduler, jobs, [], chain)
    jobs.note(ReadmittedEvent(at=now(), nodes=nodes, why="a person asked for it"))
    tell(f"{folder.path}: its jobs may use {', '.join(nodes)} again")
