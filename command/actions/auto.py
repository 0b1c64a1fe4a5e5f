"""Train where nothing stands in between; submit on a cluster with a scheduler."""

import importlib

from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome


def run(arguments: Arguments) -> Outcome:
    """Do what the cluster's profile makes the natural thing."""
    resuming = "resume" in arguments.folders
    here = resuming or compose_recipe(arguments).cluster.scheduler == "none"
    action = importlib.import_module(f"command.actions.{'train' if here else 'submit'}")
    outcome = action.run(arguments)
    assert isinstance(outcome, Outcome)
    return outcome
