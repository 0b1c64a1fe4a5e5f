"""Train where nothing stands in between; submit on a cluster with a scheduler."""

import importlib

from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome
from components.errors import RecipeError


def run(arguments: Arguments) -> Outcome:
    """Do what the cluster's profile makes the natural thing."""
    resuming = "resume" in arguments.folders
    if resuming or compose_recipe(arguments).cluster.scheduler == "none":
        outcome = importlib.import_module("command.actions.train").run(arguments)
        assert isinstance(outcome, Outcome)
        return outcome
    raise RecipeError(
        "action",
        "submitting to a scheduler does not exist yet",
        "action=show prints the recipe; without cluster= its miniature trains here",
    )
