"""The questions that ``action=evaluate`` answers, each with its section of the result file."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.run_checkpoint import RunCheckpoint, export_place, export_trained, open_trained
from command.task_file import find_tasks
from components.build import build
from components.config.schema.recipe import Recipe, check_recipe
from components.errors import RecipeError
from components.evaluate.harness import Harness, LmEvalTask, check_installed
from components.evaluate.held_out import judge_held_out, judge_text, open_judge, read_manifest
from components.evaluate.record import keep
from components.report.pages import leave_report
from components.terminal import say
from data_prep.encode import encode
from data_prep.files import open_files

Tree = dict[str, Any]
_RECIPE_KEYS = ("precision.compute", "evaluation.max_windows_per_source")


def evaluate_run(arguments: Arguments) -> Tree:
    """Answer one question about a checkpoint, keep the answer and write the report anew.

    Raises:
        RecipeError: no such checkpoint or data, a text that cannot be read, or a task that
            cannot be asked.
    """
    trained = open_trained(arguments)
    recipe = _with_values(trained.recipe, arguments.values)
    if "tasks" in arguments.values:
        section = {"tasks": _ask_tasks(arguments, trained, recipe)}
    elif "text" in arguments.folders:
        section = {"texts": _judge_own(trained, recipe, arguments.folders["text"])}
    else:
        data, manifest = read_manifest(trained.folder)
        judge = open_judge(recipe, trained.chosen, data, manifest)
        answer = judge_held_out(judge, recipe, trained.chosen, data, manifest)
        section = {"held_out": answer}
    tree = keep(trained.folder, trained.recipe, trained.chosen.marker, section)
    leave_report([trained.folder.path], trained.folder.path / "report.html", say)
    return tree


def evaluate_folder(arguments: Arguments) -> Tree:
    """Ask tasks of a folder of Hugging Face, in the precision that it states.

    Raises:
        RecipeError: it is no such folder, or a task cannot be asked.
    """
    check_installed()
    tasks = _find_tasks(arguments)
    folder = arguments.folders["file"]
    harness = Harness(folder=folder, compute=None, most_rows=1)
    return {"folder": str(folder), "tasks": harness.ask(tasks)}


def _with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Put in the few values that an evaluation may change; weights and data stay."""
    tree = recipe.model_dump(mode="json")
    for key in _RECIPE_KEYS:
        section, _, name = key.partition(".")
        tree[section][name] = values.get(key, tree[section][name])
    return check_recipe(tree)


def _judge_own(trained: RunCheckpoint, recipe: Recipe, file: Path) -> Tree:
    """Tokenize a file, or those of a pattern, as preparation does, and judge all of it."""
    data, manifest = read_manifest(trained.folder)
    files = list(open_files((str(file),), "text", "text"))
    tokenizer = build(recipe.tokenizer, "tokenizer")
    tokenizer.load(data)
    with tempfile.TemporaryDirectory() as aside:
        texts = (document.text for one in files for document in one.documents())
        record = encode(Path(aside) / "text.bin", texts, tokenizer)
        judge = open_judge(recipe, trained.chosen, data, manifest)
        answer = judge_text(judge, recipe, Path(aside), manifest, record)
    hashes = {one.name: one.record().sha256 for one in files}
    return {str(file): {"sha256": hashes, **answer}}


def _ask_tasks(arguments: Arguments, trained: RunCheckpoint, recipe: Recipe) -> Tree:
    """Export the checkpoint unless that is done, and ask the tasks of the folder."""
    check_installed()
    tasks = _find_tasks(arguments)
    target = export_place(trained)
    if not target.exists():
        export_trained(trained, target, rows="published")
        say(f"exported to {target}")
    harness = Harness(
        folder=target,
        compute=recipe.precision.compute,
        most_rows=recipe.parallelism.microbatch_sequences,
    )
    return harness.ask(tasks)


def _find_tasks(arguments: Arguments) -> list[LmEvalTask]:
    wanted = arguments.values["tasks"]
    names = [str(one) for one in (wanted if isinstance(wanted, list) else [wanted])]
    if not names:
        raise RecipeError("tasks", "no task is named", "write tasks=[NAME]")
    return find_tasks(names, arguments.folders.get("tasks_folder"))
