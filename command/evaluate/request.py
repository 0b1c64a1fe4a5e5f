"""Tasks of ``tasks=``: a user's task files, lm-eval's tasks, and lists with staged data.

A user's task file, ``TASKS_FOLDER/NAME.yaml``, is read as data and checked. lm-eval would
import Python for a ``!function`` tag, a ``class`` or an unknown metric, and open pickles or
URLs as data sets. So lm-eval never reads the file: it gets a mapping of checked keys, with
local files as data. `open_harness` sandboxes templates.

``python -m command.evaluate.request`` runs as one rank per device of this machine.
lm-eval's data parallelism distributes the requests over the ranks and merges the answers.
"""

from pathlib import Path
from typing import Any

from command.evaluate.lists import list_names, read_list
from command.files.yaml_file import read_data
from components.config.schema.types import Section
from components.config.suggestions import suggest_similar
from components.config.validation import read_section
from components.errors import RecipeError
from components.evaluate.harness import (
    LmEvalTask,
    ask_list,
    ask_tasks,
    check_installed,
    open_harness,
)
from components.evaluate.ranks import ask_ranks, be_a_rank, ranks_here
from components.evaluate.task_file import TEMPLATES, TaskFile, check_template
from components.evaluate.task_list import StagedData, TaskList, open_staged, place_of
from components.terminal import log_line

ResultTree = dict[str, Any]


class TaskRequest(Section):
    """Task names, the folder of task files, and the exported ``folder`` to evaluate.

    ``staged`` contains the data of lists. For ``compute`` and ``most_rows`` see `Harness`.
    """

    tasks: tuple[str, ...]
    tasks_folder: Path | None
    staged: Path
    folder: Path
    compute: str | None
    most_rows: int

    def load_requested(self) -> tuple[list[LmEvalTask], dict[str, tuple[TaskList, StagedData]]]:
        """Return single tasks, and lists with their data; check the user's task files."""
        folder = self.tasks_folder
        own = set() if folder is None else {file.stem for file in folder.glob("*.yaml")}
        known = {*list_names()} - own  # a user's file has precedence
        lists = {name: read_list(name) for name in self.tasks if name in known}
        others = [name for name in self.tasks if name not in known]
        return find_tasks(others, folder), {
            name: (task_list, open_staged(task_list, place_of(name, self.staged)))
            for name, task_list in lists.items()
        }

    def run_requested(self) -> ResultTree:
        """Run all tasks in this process; of several ranks, only the first returns figures."""
        tasks, lists = self.load_requested()
        sections: ResultTree = {}
        with open_harness(
            self.folder,
            compute=self.compute,
            most_rows=self.most_rows,
            shipped=bool(lists) or any(task.config is None for task in tasks),
        ) as harness:
            if tasks:
                sections["tasks"] = ask_tasks(harness, tasks)
            if lists:
                sections["scores"] = {
                    name: ask_list(harness, task_list, data, log_line)
                    for name, (task_list, data) in lists.items()
                }
        return sections

    def ask_on_ranks(self, ranks: int | None) -> ResultTree:
        """Run all tasks on ``ranks`` ranks, default one per device; return the sections."""
        check_installed()
        count = ranks_here(ranks)
        if count == 1:
            return self.run_requested()
        self.load_requested()  # errors are reported before any rank starts
        return ask_ranks("command.evaluate.request", self.model_dump_json(), count)


def find_tasks(names: list[str], folder: Path | None) -> list[LmEvalTask]:
    """Read the tasks that are in ``folder``; any other must be one that lm-eval ships."""
    if folder is not None and not folder.is_dir():
        raise RecipeError("tasks_folder", f"{folder} is not a folder", "choose a folder")
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
        raise sent.locate_error(error) from None
    config = sent.tree | {"dataset_kwargs": {"data_files": data_files}}
    listed = tuple(Path(path) for paths in data_files.values() for path in paths)
    return LmEvalTask(name=name, config=config, files=(file, *listed))


def _check_task(tree: ResultTree, name: str) -> None:
    """Check a task file against its schema, and its templates against their limits."""
    for key in tree:
        if key not in TaskFile.model_fields:
            problem = "unknown key in a task file"
            raise RecipeError(key, problem, suggest_similar(key, [*TaskFile.model_fields]))
    read_section(TaskFile, tree, "")
    for key in TEMPLATES:
        texts = tree.get(key)
        for text in texts if isinstance(texts, list) else [texts]:
            try:
                check_template(str(text))
            except ValueError as error:
                raise RecipeError(key, f"the template {error}", "write an expression") from None
    if (task := tree.get("task")) != name:
        raise RecipeError("task", f"{task!r} differs from the file name", f"write task: {name}")


def _data_files(tree: ResultTree, folder: Path) -> dict[str, list[str]]:
    """Return the files of each split, which must be inside the task file's folder."""
    match tree.get("dataset_kwargs"):
        case {"data_files": dict(named), **others} if not others:
            pass
        case _:
            problem = "must contain only data_files, which maps splits to files"
            remedy = "write dataset_kwargs: {data_files: {test: FILE}}"
            raise RecipeError("dataset_kwargs", problem, remedy)
    files: dict[str, list[str]] = {split: [] for split in named}
    for split, paths in named.items():
        where = f"dataset_kwargs.data_files.{split}"
        for name in map(str, paths if isinstance(paths, list) else [paths]):
            path = (folder / name).resolve()
            if not path.is_file():
                remedy = "write a path relative to the task file"
                raise RecipeError(where, f"{folder / name} does not exist", remedy)
            if not path.is_relative_to(folder.resolve()):
                problem = f"{name!r} is outside the folder of the task file"
                raise RecipeError(where, problem, "move the file into that folder")
            files[split].append(str(path))
    return files


if __name__ == "__main__":
    be_a_rank(lambda work: TaskRequest.model_validate_json(work).run_requested())
