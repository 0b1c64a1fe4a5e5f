"""One task of a pass, from its plan to its record."""

from importlib import import_module
from pathlib import Path

from components.errors import RecipeError
from data_prep.stages.disk import full_disk_told
from data_prep.stages.plan import read_plan
from data_prep.stages.record import read_record, stem_of, write_failure, write_record
from data_prep.stages.tally import Tally


def run_task(folder: Path, task: int) -> None:
    """Do a task of the pass in ``folder``, unless its record says that it is done.

    Raises:
        RecipeError: its input is bad, or the disk is full.
    """
    plan = read_plan(folder)
    if read_record(folder, task, plan.key) is not None:
        return
    work = import_module(f"data_prep.stages.{plan.work}").work
    tally = Tally()
    with full_disk_told(folder):
        files = work(plan.tasks[task], plan.settings, stem_of(folder, task), tally)
        write_record(folder, task, plan.key, files, tally)


def run_task_elsewhere(folder: Path, task: int) -> None:
    """Do a task for a command that does not see this process: leave it what goes wrong."""
    try:
        run_task(folder, task)
    except RecipeError as error:
        write_failure(folder, task, error)
        raise
