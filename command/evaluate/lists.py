"""Named lists of tasks: ``task_lists/NAME.yaml``, read as data."""

from pathlib import Path

from command.arguments import ROOT, Arguments
from command.files.yaml_file import read_data
from components.config.suggestions import nearest
from components.config.validation import read_section
from components.errors import RecipeError
from components.evaluate.staged import fetch
from components.evaluate.task_list import TaskList
from components.terminal import say

LISTS = ROOT / "task_lists"


def list_names() -> list[str]:
    """Name the lists that there are."""
    return sorted(file.stem for file in LISTS.glob("*.yaml"))


def read_list(name: str) -> TaskList:
    """Read a list that :func:`list_names` names.

    Raises:
        RecipeError: its file is no such list; the line is named.
    """
    sent = read_data(_file(name), "tasks")
    try:
        found = read_section(TaskList, sent.tree, "")
    except RecipeError as error:
        raise sent.told(error) from None
    if found.name != name:
        problem = f"{found.name!r}, in the file of {name!r}"
        raise sent.told(RecipeError("name", problem, f"write name: {name}"))
    return found


def fetch_lists(arguments: Arguments, folder: Path) -> list[Path]:
    """Fetch the data of the lists that ``tasks=`` names into ``folder``, or find them there.

    Raises:
        RecipeError: a name is that of no list, or a data set is not to be had.
    """
    known = list_names()
    for name in arguments.tasks:
        if name not in known:
            problem = f"there is no list of tasks {name!r}"
            raise RecipeError("tasks", problem, nearest(name, known))
    asked = [read_list(name) for name in arguments.tasks]
    if not asked:
        return []
    from components.evaluate.harness import check_installed, task_manager  # imports torch

    check_installed()
    return [fetch(one, folder, task_manager(shipped=True), say) for one in asked]


def _file(name: str) -> Path:
    return LISTS / f"{name}.yaml"
