"""Train where nothing stands in between; submit on a cluster with a scheduler."""

import importlib

from command.arguments import Arguments
from command.compose import compose_recipe
from command.options import check_words, keys_of
from command.outcome import ActionResult


def run(arguments: Arguments) -> ActionResult:
    """Do what the cluster's profile makes the natural thing."""
    resuming = "resume" in arguments.folders
    here = resuming or compose_recipe(arguments).cluster.scheduler == "none"
    action = "train" if here else "submit"
    check_words(action, keys_of(arguments.words))
    outcome = importlib.import_module(f"command.actions.{action}").run(arguments)
    assert isinstance(outcome, ActionResult)
    return outcome
