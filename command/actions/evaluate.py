"""Judge a checkpoint: its loss on held-out text or the user's own, or tasks of lm-eval."""

import json
import os
from collections.abc import Mapping
from typing import Any

from command.arguments import Arguments
from command.outcome import ActionResult
from components.errors import RecipeError
from components.report import numbers
from components.report.evaluation import task_grid, text_grid
from components.report.tables import terminal_table
from components.terminal import console, tell

Tree = dict[str, Any]
_RECIPE_KEYS = ("precision.compute", "evaluation.max_windows_per_source")


def print_result(result: Mapping[str, Any]) -> None:
    """Print every section of the result file that there is."""
    out = console(width=160)
    out.print(_title(result))
    for grid in (text_grid([((), result)], lead=()), task_grid([((), result)], lead=())):
        if grid.rows:
            out.print(terminal_table(grid))
    if "held_out" in result:
        out.print(_compared(result["held_out"]))


def _title(result: Mapping[str, Any]) -> str:
    if "folder" in result:
        return str(result["folder"])
    step, checkpoint = result["step"], result["checkpoint"]
    return f"{result['recipe']}, scale {result['scale']}, step {step:,}: {checkpoint}"


def _compared(section: Mapping[str, Any]) -> str:
    mean, logged = section["mean_over_sources"], section["logged_in_training"]
    return (
        f"mean loss over sources {numbers.loss(mean)}, training logged {numbers.loss(logged)}; "
        f"{section['compute']} on {section['device']}"
    )


def run(arguments: Arguments) -> ActionResult:
    """Evaluate ``run=FOLDER``: held-out text, or ``text=FILE``, or ``tasks=[...]``.

    Tasks may also be asked of an exported folder, ``file=FOLDER``; then nothing is kept.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports what reads it
    result = _evaluate(arguments)
    if arguments.output == "json":
        tell(json.dumps(result))
    else:
        print_result(result)
    return ActionResult()


def _evaluate(arguments: Arguments) -> dict[str, Any]:
    from command.evaluation import evaluate_folder, evaluate_run  # imports torch

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
