"""The questions that ``action=evaluate`` answers, each with its section of the result file.

A user's own task of lm-eval, ``TASKS_FOLDER/NAME.yaml``, is read as data and checked. lm-eval
would import Python for a ``!function`` tag, a ``class`` or a metric of another name, and open
pickles or addresses as data sets. So it never sees the file: it is handed a mapping of the keys
below, whose data are local files. What a template may do, `Harness` bounds.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command.actions.export import (
    RunCheckpoint,
    export_place,
    export_trained,
    kept_tokens,
    open_trained,
)
from command.arguments import Arguments
from command.recipe.yaml_file import read_data
from command.task_lists import list_names, read_list
from components.build import build
from components.config.schema.recipe import Recipe, check_recipe
from components.config.suggestions import nearest
from components.data.token_file import encode
from components.errors import RecipeError
from components.evaluate import text_loss
from components.evaluate.harness import ask_tasks, check_installed, open_harness
from components.evaluate.listed import ask_list
from components.evaluate.staged import StagedData, open_staged, place_of
from components.evaluate.task_list import TaskList
from components.evaluate.tasks import LmEvalTask
from components.report.pages import leave_report
from components.terminal import say
from data_prep.sources import open_files

Tree = dict[str, Any]
_RECIPE_KEYS = ("precision.compute", "evaluation.max_windows_per_source")
_TASK_KEYS = (
    *("task", "task_alias", "description", "metadata"),
    *("dataset_path", "dataset_kwargs"),
    *("training_split", "validation_split", "test_split", "fewshot_split"),
    *("output_type", "doc_to_text", "doc_to_target", "doc_to_choice"),
    *("target_delimiter", "fewshot_delimiter", "num_fewshot"),
    *("generation_kwargs", "metric_list", "filter_list"),
)
_TASK_FORMATS = ("json", "csv", "parquet", "text")


def evaluate_run(arguments: Arguments) -> Tree:
    """Answer one question about a checkpoint, keep the answer and write the report anew.

    Raises:
        RecipeError: no such checkpoint or data, or a text or task that cannot be used.
    """
    trained = open_trained(arguments)
    tree = trained.recipe.model_dump(mode="json")
    for key in _RECIPE_KEYS:  # what an evaluation may change; weights and data stay
        part, _, name = key.partition(".")
        tree[part][name] = arguments.values.get(key, tree[part][name])
    recipe = check_recipe(tree)
    if arguments.tasks:
        section = beside_published(_ask(arguments, trained, recipe), trained.recipe)
    elif arguments.text is not None:
        section = {"texts": _judge_own(trained, recipe, arguments.text)}
    else:
        data, manifest = text_loss.read_manifest(trained.folder)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_held_out(judge, recipe, trained.chosen, data, manifest)
        section = {"held_out": answer}
    kept = text_loss.keep(trained.folder, trained.recipe, trained.chosen.marker, section)
    leave_report([trained.folder.path], trained.folder.path / "report.html", say)
    return kept


def evaluate_all(arguments: Arguments) -> list[Tree]:
    """Answer the same question about every checkpoint that a run kept, one after the other.

    Raises:
        RecipeError: as `evaluate_run`, at the first checkpoint that cannot be evaluated.
    """
    kept = kept_tokens(open_trained(arguments).folder)
    return [evaluate_run(replace(arguments, at_tokens=tokens)) for tokens in kept]


def beside_published(section: Tree, recipe: Recipe) -> Tree:
    """Put beside each score what the recipe's sources have: ``score_TASK``, in per cent."""
    for scores in section.get("scores", {}).values():
        averaged = {"average": scores}
        for name, one in {**scores["tasks"], **averaged}.items():
            figure = recipe.published.get(f"score_{name}")
            one["published"] = None if figure is None else float(figure.value)
    return section


def evaluate_folder(folder: Path, arguments: Arguments) -> Tree:
    """Ask tasks of a folder of Hugging Face, in the precision that it states.

    Raises:
        RecipeError: it is no such folder, or a task cannot be asked.
    """
    check_installed()
    asked = find_asked(arguments, arguments.tasks_folder or Path())
    return {"folder": str(folder), **asked.ask(folder, compute=None, most_rows=1)}


def _judge_own(trained: RunCheckpoint, recipe: Recipe, file: Path) -> Tree:
    """Tokenize a file, or those of a pattern, as preparation does, and judge all of it."""
    data, manifest = text_loss.read_manifest(trained.folder)
    files = list(open_files((str(file),), "text", "text"))
    tokenizer = build(recipe.tokenizer, "tokenizer")
    tokenizer.load(data)
    with tempfile.TemporaryDirectory() as aside:
        texts = (document.text for one in files for document in one.documents())
        record = encode(Path(aside) / "text.bin", texts, tokenizer)
        judge = text_loss.open_judge(recipe, trained.chosen, data, manifest)
        answer = text_loss.judge_text(judge, recipe, Path(aside), manifest, record)
    hashes = {one.name: one.record().sha256 for one in files}
    return {str(file): {"sha256": hashes, **answer}}


def _ask(arguments: Arguments, trained: RunCheckpoint, recipe: Recipe) -> Tree:
    """Export the checkpoint unless that is done, and ask the folder."""
    check_installed()
    beside = Path(trained.folder.data.folder).parent  # where staged data are brought
    asked = find_asked(arguments, arguments.tasks_folder or beside)
    target = export_place(trained)
    if not target.exists():
        export_trained(trained, target, rows="published")
        say(f"exported to {target}")
    compute, rows = recipe.precision.compute, recipe.parallelism.microbatch_sequences
    return asked.ask(target, compute=compute, most_rows=rows)


@dataclass(frozen=True)
class TaskRequest:
    """What ``tasks=`` names: tasks one by one, and lists with their staged data."""

    tasks: list[LmEvalTask]
    lists: dict[str, tuple[TaskList, StagedData]]

    def ask(self, folder: Path, *, compute: str | None, most_rows: int) -> Tree:
        """Ask everything of an exported folder, and return the sections of the result."""
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


def find_asked(arguments: Arguments, staged: Path) -> TaskRequest:
    """Find what ``tasks=`` names; the data of a list lie in ``staged``.

    Raises:
        RecipeError: a list whose data are not there, or a task that is none.
    """
    folder = arguments.tasks_folder
    own = set() if folder is None else {file.stem for file in folder.glob("*.yaml")}
    known = {*list_names()} - own  # a file of the user's is what he means
    lists = {name: read_list(name) for name in arguments.tasks if name in known}
    found = {
        name: (asked, open_staged(asked, place_of(name, staged)))
        for name, asked in lists.items()
    }
    others = [name for name in arguments.tasks if name not in known]
    return TaskRequest(find_tasks(others, arguments.tasks_folder), found)


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
        data_files = _data_files(sent.tree, name, file.parent)
    except RecipeError as error:
        raise sent.told(error) from None
    config = sent.tree | {"dataset_kwargs": {"data_files": data_files}}
    listed = tuple(Path(one) for paths in data_files.values() for one in paths)
    return LmEvalTask(name=name, config=config, files=(file, *listed))


def _data_files(tree: Tree, name: str, folder: Path) -> dict[str, list[str]]:
    """Check a task, and find the files of each split beside its file."""
    for key in tree:
        if key not in _TASK_KEYS:
            problem = "a task file is data: this key is not taken"
            raise RecipeError(key, problem, nearest(key, _TASK_KEYS))
    if (found := tree.get("task")) != name:
        raise RecipeError("task", f"{found!r}, in the file of {name!r}", f"write task: {name}")
    if (found := tree.get("dataset_path")) not in _TASK_FORMATS:
        problem = f"{found!r}, but a task's data are local files"
        raise RecipeError("dataset_path", problem, f"write one of {', '.join(_TASK_FORMATS)}")
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
