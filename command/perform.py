"""Run an action by its name: the only place that imports `command.actions`."""

import importlib

from command.arguments import Arguments
from command.composition.compose import ComposedRun
from command.outcome import ActionResult
from command.words import OF_JOBS, check_words, keys_of


def perform(
    action: str, arguments: Arguments, composed: ComposedRun | None = None
) -> ActionResult:
    """Check the words of an action and run it; one that returns nothing has done it all.

    An action that chose this one may hand on what it ``composed``.

    Raises:
        RecipeError: a word that it would ignore, or whatever is wrong with them.
    """
    check_words(action, keys_of(arguments.words))
    room = "jobs." if action in OF_JOBS else ""
    module = importlib.import_module(f"command.actions.{room}{action}")
    given = () if composed is None else (composed,)
    ended: ActionResult | None = module.run(arguments, *given)
    return ended or ActionResult()
