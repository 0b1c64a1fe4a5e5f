"""Print the status of runs, submitted or on this machine."""

from command.arguments import Arguments
from command.jobs.status import print_run, print_runs
from command.recipe.path_checks import named_runs


def run(arguments: Arguments) -> None:
    """Print one run's jobs, or a table of all runs of a sweep's folder or of ``runs=[...]``."""
    folders = named_runs(arguments)
    if folders == [arguments.run]:
        print_run(folders[0], arguments.output)
    else:
        print_runs(folders, arguments.output)
