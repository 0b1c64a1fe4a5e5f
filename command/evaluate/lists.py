"""Task lists: ``task_lists/NAME.yaml``, read as data."""

from pathlib import Path

from command.arguments import ROOT, Arguments
from command.files.yaml_file import read_data
from components.config.suggestions import suggest_similar
from components.config.validation import read_section
from components.errors import RecipeError
from components.evaluate.task_list import TaskList, fetch_task_data
from components.terminal import log_line

LISTS = ROOT / "task_lists"


def list_names() -> list[str]:
    """Return the names of all task lists."""
    return sorted(file.stem for file in LISTS.glob("*.yaml"))


def read_list(name: str) -> TaskList:
    """Read the task list ``name``, one of :func:`list_names`; an error has the line."""
    sent = read_data(LISTS / f"{name}.yaml", "tasks")
    try:
        task_list = read_section(TaskList, sent.tree, "")
    except RecipeError as error:
        raise sent.locate_error(error) from None
    if task_list.name != name:
        problem = f"{task_list.name!r} differs from the file name {name!r}"
        raise sent.locate_error(RecipeError("name", problem, f"write name: {name}"))
    return task_list


def fetch_lists(arguments: Arguments, folder: Path) -> list[Path]:
    """Fetch the data of the lists in ``tasks=`` into ``folder`` and return their folders."""
    known = list_names()
    for name in arguments.tasks:
        if name not in known:
            problem = f"unknown task list: {name!r}"
            raise RecipeError("tasks", problem, suggest_similar(name, known))
    task_lists = [read_list(name) for name in arguments.tasks]
    if not task_lists:
        return []
    from components.evaluate.harness import check_installed, task_manager  # imports torch

    check_installed()
    return [
        fetch_task_data(task_list, folder, task_manager(shipped=True), log_line)
        for task_list in task_lists
    ]
