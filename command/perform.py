"""Run an action by its name: the only place that imports `command.actions`."""

import importlib

from command.arguments import Arguments
from command.composition.compose import ComposedRun, compose
from command.outcome import ActionResult
from command.words import OF_JOBS, check_words, keys_of
from components.config.check import read_recipe
from components.run.folder import existing_run_folder


def perform(action: str, arguments: Arguments) -> ActionResult:
    """Check the words of an action and run it; one that returns nothing has done it all.

    Without an action a recipe is trained or submitted, as is natural on its cluster.

    Raises:
        RecipeError: a word that it would ignore, or whatever is wrong with them.
    """
    composed = None
    if action == "auto":
        action, composed = _choose(arguments)
    check_words(action, keys_of(arguments.words))
    room = "jobs." if action in OF_JOBS else ""
    module = importlib.import_module(f"command.actions.{room}{action}")
    given = () if composed is None else (composed,)
    ended: ActionResult | None = module.run(arguments, *given)
    return ended or ActionResult()


def _choose(arguments: Arguments) -> tuple[str, ComposedRun | None]:
    """Train where nothing stands in between; submit on a cluster with a scheduler."""
    composed = None
    if arguments.resume is None:
        composed = compose(arguments)
        scheduler = composed.recipe.cluster.scheduler
    elif not (arguments.resume / "recipe.json").is_file():
        scheduler = "none"  # training says what is wrong
    else:
        folder = existing_run_folder(arguments.resume, "resume")
        kept = read_recipe(folder.recipe).cluster.scheduler
        scheduler = arguments.values.get("cluster.scheduler", kept)
    return "train" if scheduler == "none" else "submit", composed
