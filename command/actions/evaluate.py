"""Judge a checkpoint: its loss on held-out text or the user's own, or tasks of lm-eval."""

import json
import os
from typing import Any

from command.arguments import Arguments
from command.evaluated_text import print_result
from command.outcome import Outcome
from components.errors import RecipeError
from components.terminal import tell


def run(arguments: Arguments) -> Outcome:
    """Evaluate ``run=FOLDER``: held-out text, or ``text=FILE``, or ``tasks=[...]``.

    Tasks may also be asked of an exported folder, ``file=FOLDER``; then nothing is kept.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports what reads it
    result = _evaluate(arguments)
    if arguments.output == "json":
        tell(json.dumps(result))
    else:
        print_result(result)
    return Outcome()


def _evaluate(arguments: Arguments) -> dict[str, Any]:
    from command.evaluating import evaluate_folder, evaluate_run  # imports torch

    folders = arguments.folders
    asks_tasks = "tasks" in arguments.values
    if "tasks_folder" in folders and not asks_tasks:
        raise RecipeError("tasks_folder", "no task of it is named", "write tasks=[NAME]")
    if "file" not in folders:
        return evaluate_run(arguments)
    if not asks_tasks:
        problem = "an exported folder is asked for tasks only"
        raise RecipeError("file", problem, "add tasks=[NAME], or name run=FOLDER instead")
    return evaluate_folder(arguments)
