"""Evaluate a checkpoint by held-out loss, by loss on the user's text, or with lm-eval tasks."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from command.arguments import Arguments
from command.evaluate.queue import evaluate_in_jobs
from command.outcome import print_result
from components.errors import RecipeError
from components.report import numbers
from components.report.held_out import AS_MIXTURE, PLAIN_MEAN
from components.report.measurements import score_grid, task_grid, text_grid
from components.report.tables import terminal_table
from components.terminal import create_console


def _print(result: Mapping[str, Any]) -> None:
    out = create_console(width=160)
    if "folder" in result:
        out.print(str(result["folder"]))
    else:
        step, checkpoint = result["step"], result["checkpoint"]
        out.print(f"{result['recipe']}, scale {result['scale']}, step {step:,}: {checkpoint}")
    for grid in (text_grid(result), task_grid(result), score_grid(result)):
        if grid.rows:
            out.print(terminal_table(grid))
    if "held_out" in result:
        held_out = result["held_out"]
        keys = ("weighted_as_mixture", "mean_over_sources", "logged_in_training")
        weighted, mean, logged = (numbers.format_loss(held_out[key]) for key in keys)
        out.print(
            f"held-out loss {weighted}, {AS_MIXTURE}; {PLAIN_MEAN} {mean}, training logged "
            f"{logged}; {held_out['compute']} on {held_out['device']}"
        )


def _tell_all(arguments: Arguments, results: Sequence[Mapping[str, Any]]) -> None:
    def print_all() -> None:
        for result in results:
            _print(result)

    print_result(arguments.output, {"checkpoints": results}, print_all)


def run(arguments: Arguments) -> None:
    """Evaluate ``run=FOLDER``, or run tasks on an exported ``file=FOLDER`` and save nothing."""
    if arguments.tasks_folder is not None and not arguments.tasks:
        raise RecipeError("tasks_folder", "tasks_folder requires tasks", "write tasks=[NAME]")
    if arguments.executor == "array":  # a login node may lack torch
        _tell_all(arguments, evaluate_in_jobs(arguments))
        return
    os.environ["HF_HUB_OFFLINE"] = "1"  # before any import that reads it
    from command.evaluate.questions import (  # imports torch
        evaluate_all,
        evaluate_folder,
        evaluate_run,
    )

    if arguments.checkpoints == "all":
        _tell_all(arguments, evaluate_all(arguments))
        return
    if arguments.file is None:
        result = evaluate_run(arguments)
    elif arguments.tasks:
        result = evaluate_folder(arguments.file, arguments)
    else:
        problem = "an exported folder supports only tasks"
        raise RecipeError("file", problem, "add tasks=[NAME], or write run=FOLDER instead")
    print_result(arguments.output, result, lambda: _print(result))
