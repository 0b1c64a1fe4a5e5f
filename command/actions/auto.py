"""Train where nothing stands in between; submit on a cluster with a scheduler."""

from command.arguments import Arguments, perform
from command.compose import compose_recipe
from command.outcome import ActionResult


def run(arguments: Arguments) -> ActionResult:
    """Do what the cluster's profile makes the natural thing."""
    resumes = arguments.resume is not None
    here = resumes or compose_recipe(arguments).cluster.scheduler == "none"
    return perform("train" if here else "submit", arguments)
