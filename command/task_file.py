"""A user's own task of lm-eval, ``TASKS_FOLDER/NAME.yaml``, read as data and checked.

lm-eval would import Python for a ``!function`` tag, a ``class`` or a metric of another name,
and open pickles or addresses as data sets. So it never sees the file: it is handed a mapping of
the keys below, whose data are local files. What a template may do, `Harness` bounds.
"""

from pathlib import Path
from typing import Any

from command.yaml_file import ReceivedYaml, read_data
from components.config.targets import nearest
from components.errors import RecipeError
from components.evaluate.harness import LmEvalTask

_KEYS = (
    *("task", "task_alias", "description", "metadata"),
    *("dataset_path", "dataset_kwargs"),
    *("training_split", "validation_split", "test_split", "fewshot_split"),
    *("output_type", "doc_to_text", "doc_to_target", "doc_to_choice"),
    *("target_delimiter", "fewshot_delimiter", "num_fewshot"),
    *("generation_kwargs", "metric_list", "filter_list"),
)
_FORMATS = ("json", "csv", "parquet", "text")


def find_tasks(names: list[str], folder: Path | None) -> list[LmEvalTask]:
    """Read the tasks that are in ``folder``; any other must be one that lm-eval ships.

    Raises:
        RecipeError: there is no such folder, or a file in it is no task; its line is named.
    """
    if folder is not None and not folder.is_dir():
        raise RecipeError("tasks_folder", f"{folder} is no folder", "name one of task files")
    own = {} if folder is None else {file.stem: file for file in folder.glob("*.yaml")}
    return [
        _read_task(name, own[name]) if name in own else LmEvalTask(name=name, known=tuple(own))
        for name in names
    ]


def _read_task(name: str, file: Path) -> LmEvalTask:
    sent = read_data(file, "task")
    try:
        _check_keys(sent, name)
        data_files = _data_files(sent)
    except RecipeError as error:
        raise sent.told(error) from None
    config = sent.tree | {"dataset_kwargs": {"data_files": data_files}}
    listed = tuple(Path(one) for paths in data_files.values() for one in paths)
    return LmEvalTask(name=name, config=config, files=(file, *listed))


def _check_keys(sent: ReceivedYaml, name: str) -> None:
    for key in sent.tree:
        if key not in _KEYS:
            problem = "a task file is data: this key is not taken"
            raise RecipeError(key, problem, nearest(key, _KEYS))
    if sent.tree.get("task") != name:
        found = sent.tree.get("task")
        raise RecipeError("task", f"{found!r}, in the file of {name!r}", f"write task: {name}")
    if sent.tree.get("dataset_path") not in _FORMATS:
        found = sent.tree.get("dataset_path")
        problem = f"{found!r}, but a task's data are local files"
        raise RecipeError("dataset_path", problem, f"write one of {', '.join(_FORMATS)}")


def _data_files(sent: ReceivedYaml) -> dict[str, list[str]]:
    """Find the files of each split, beside the task file."""
    settings = sent.tree.get("dataset_kwargs")
    named: Any = settings.get("data_files") if isinstance(settings, dict) else None
    if not isinstance(named, dict) or set(settings or {}) != {"data_files"}:
        problem = "names no files by split, or more than that"
        remedy = "write dataset_kwargs: {data_files: {test: FILE}}"
        raise RecipeError("dataset_kwargs", problem, remedy)
    found: dict[str, list[str]] = {}
    for split, paths in named.items():
        where = f"dataset_kwargs.data_files.{split}"
        listed = paths if isinstance(paths, list) else [paths]
        found[split] = [_existing(sent.file.parent, str(path), where) for path in listed]
    return found


def _existing(folder: Path, name: str, where: str) -> str:
    path = (folder / name).resolve()
    if not path.is_file():
        remedy = "paths are relative to the task file"
        raise RecipeError(where, f"there is no file {folder / name}", remedy)
    if not path.is_relative_to(folder.resolve()):
        problem = f"{name!r} leads out of the folder of tasks"
        raise RecipeError(where, problem, "put the file beside the task")
    return str(path)
