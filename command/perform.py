"""Run an action by name. Only this module imports `command.actions`."""

import importlib

from command.arguments import Arguments
from command.composition.compose import ComposedRun, compose_run
from command.outcome import ActionResult
from command.words import OF_JOBS, check_words, keys_of
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.folder import existing_run_folder

MEASURED = ("auto", "train", "submit")  # with card=true


def run_action(action: str, arguments: Arguments) -> ActionResult:
    """Check an action's words and run it. An action that returns None succeeded.

    Without an action a recipe is trained, or submitted if its cluster has a scheduler.
    """
    composed = None
    if arguments.card and arguments.resume is None and action in MEASURED:
        from command.card.request import shape_card  # slow: the planner

        arguments = shape_card(arguments)
    if action == "auto":
        if arguments.study is not None:
            raise RecipeError("study", "a study requires -m", "add -m before study=")
        action, composed = _choose(arguments)
    check_words(action, keys_of(arguments.words))
    folder_name = "jobs." if action in OF_JOBS else ""
    module = importlib.import_module(f"command.actions.{folder_name}{action}")
    extra = () if composed is None else (composed,)
    ended: ActionResult | None = module.run(arguments, *extra)
    return ended or ActionResult()


def _choose(arguments: Arguments) -> tuple[str, ComposedRun | None]:
    """Choose to train, or to submit if the cluster has a scheduler."""
    composed = None
    if arguments.resume is None:
        composed = compose_run(arguments)
        scheduler = composed.recipe.cluster.scheduler
    elif not (arguments.resume / "recipe.json").is_file():
        scheduler = "none"  # training reports the error
    else:
        folder = existing_run_folder(arguments.resume, "resume")
        recorded = read_recipe(folder.recipe).cluster.scheduler
        scheduler = arguments.values.get("cluster.scheduler", recorded)
    return "train" if scheduler == "none" else "submit", composed
