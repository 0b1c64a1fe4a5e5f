"""The tasks that ``tasks=`` names: a user's own, those of lm-eval, and lists with staged data.

A user's own task of lm-eval, ``TASKS_FOLDER/NAME.yaml``, is read as data and checked. lm-eval
would import Python for a ``!function`` tag, a ``class`` or a metric of another name, and open
pickles or addresses as data sets. So it never sees the file: it is handed a mapping of the keys
below, whose data are local files. What a template may do, `Harness` bounds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.evaluate.lists import list_names, read_list
from command.files.yaml_file import read_data
from components.config.schema.types import Section
from components.config.suggestions import nearest
from components.config.validation import read_section
from components.errors import RecipeError
from components.evaluate.harness import ask_tasks, open_harness
from components.evaluate.listed import ask_list
from components.evaluate.staged import StagedData, open_staged, place_of
from components.evaluate.task_file import TEMPLATES, TaskFile, check_template
from components.evaluate.task_list import TaskList
from components.evaluate.tasks import LmEvalTask
from components.terminal import say

Tree = dict[str, Any]


class TaskRequest(Section):
    """The names that a user gave, and where their files are."""

    tasks: tuple[str, ...]
    tasks_folder: Path | None
    staged: Path  # what was brought for the lists lies in it

    def find(self) -> "FoundTasks":
        """Find the tasks, and check what is the user's own.

        Raises:
            RecipeError: a list whose data are not there, or a task that is none.
        """
        folder = self.tasks_folder
        own = set() if folder is None else {file.stem for file in folder.glob("*.yaml")}
        known = {*list_names()} - own  # a file of the user's is what he means
        lists = {name: read_list(name) for name in self.tasks if name in known}
        found = {
            name: (asked, open_staged(asked, place_of(name, self.staged)))
            for name, asked in lists.items()
        }
        others = [name for name in self.tasks if name not in known]
        return FoundTasks(find_tasks(others, folder), found)


@dataclass(frozen=True)
class FoundTasks:
    """Tasks one by one, and lists with their staged data."""

    tasks: list[LmEvalTask]
    lists: dict[str, tuple[TaskList, StagedData]]

    def ask(self, folder: Path, *, compute: str | None, most_rows: int) -> Tree:
        """Ask everything of an exported folder; return the sections of the result.

        Of several ranks each takes its share, and the first has the figures.
        """
        sections: Tree = {}
        if self.tasks:
            found = ask_tasks(folder, self.tasks, compute=compute, most_rows=most_rows)
            sections["tasks"] = found
        if self.lists:
            with open_harness(folder, compute=compute, most_rows=most_rows) as harness:
                sections["scores"] = {
                    name: ask_list(harness, asked, data, say)
                    for name, (asked, data) in self.lists.items()
                }
        return sections


def find_tasks(names: list[str], folder: Path | None) -> list[LmEvalTask]:
    """Read the tasks that are in ``folder``; any other must be one that lm-eval ships.

    Raises:
        RecipeError: there is no such folder, or a file in it is no task; its line is named.
    """
    if folder is not None and not folder.is_dir():
        raise RecipeError("tasks_folder", f"{folder} is no folder", "name one of task files")
    own = {} if folder is None else {file.stem: file for file in folder.glob("*.yaml")}
    known = (*own, *list_names())
    return [
        _read_task(name, own[name]) if name in own else LmEvalTask(name=name, known=known)
        for name in names
    ]


def _read_task(name: str, file: Path) -> LmEvalTask:
    sent = read_data(file, "task")
    try:
        _check_task(sent.tree, name)
        data_files = _data_files(sent.tree, file.parent)
    except RecipeError as error:
        raise sent.told(error) from None
    config = sent.tree | {"dataset_kwargs": {"data_files": data_files}}
    listed = tuple(Path(one) for paths in data_files.values() for one in paths)
    return LmEvalTask(name=name, config=config, files=(file, *listed))


def _check_task(tree: Tree, name: str) -> None:
    """Compare a task file with its schema, and bound what its templates compute."""
    for key in tree:
        if key not in TaskFile.model_fields:
            problem = "a task file is data: this key is not taken"
            raise RecipeError(key, problem, nearest(key, [*TaskFile.model_fields]))
    read_section(TaskFile, tree, "")
    for key in TEMPLATES:
        texts = tree.get(key)
        for text in texts if isinstance(texts, list) else [texts]:
            try:
                check_template(str(text))
            except ValueError as error:
                raise RecipeError(key, f"the template {error}", "write an expression") from None
    if (found := tree.get("task")) != name:
        raise RecipeError("task", f"{found!r}, in the file of {name!r}", f"write task: {name}")


def _data_files(tree: Tree, folder: Path) -> dict[str, list[str]]:
    """Find the files of each split beside the task file."""
    match tree.get("dataset_kwargs"):
        case {"data_files": dict(named), **others} if not others:
            pass
        case _:
            problem = "names no files by split, or more than that"
            remedy = "write dataset_kwargs: {data_files: {test: FILE}}"
            raise RecipeError("dataset_kwargs", problem, remedy)
    files: dict[str, list[str]] = {split: [] for split in named}
    for split, paths in named.items():
        where = f"dataset_kwargs.data_files.{split}"
        for one in map(str, paths if isinstance(paths, list) else [paths]):
            path = (folder / one).resolve()
            if not path.is_file():
                remedy = "paths are relative to the task file"
                raise RecipeError(where, f"there is no file {folder / one}", remedy)
            if not path.is_relative_to(folder.resolve()):
                problem = f"{one!r} leads out of the folder of tasks"
                raise RecipeError(where, problem, "put the file beside the task")
            files[split].append(str(path))
    return files
