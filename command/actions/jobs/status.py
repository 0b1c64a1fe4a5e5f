"""Print the status of runs, and clear their lists of avoided nodes."""

from cluster.begin import readmit_nodes
from cluster.clients import scheduler_for
from cluster.records import Jobs
from cluster.scheduler import SchedulerError, check_present
from command.arguments import Arguments
from command.jobs.status import print_run, print_runs
from command.recipe.path_checks import named_runs
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.terminal import print_output


def run(arguments: Arguments) -> None:
    """Print the jobs of one run, or a table of the runs of a sweep folder or of ``runs=[...]``.

    With ``exclude=none`` queued and later jobs may use all nodes again.
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
    jobs.list_job_ids(scheduler)  # raises if the record contains a malformed id
    if not (nodes := tuple(jobs.load_chain().avoided)):
        print_output(f"{folder.path} has no excluded nodes")
        return
    try:
        check_present(scheduler, None)
        readmit_nodes(scheduler, jobs, nodes, "a user requested it")
    except SchedulerError as error:
        raise RecipeError("cluster.scheduler", str(error), "try again later") from None
    print_output(f"{folder.path}: its jobs may use {', '.join(nodes)} again")
