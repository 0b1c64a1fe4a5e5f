"""Train where nothing stands in between; submit on a cluster with a scheduler."""

from command.arguments import Arguments, perform
from command.compose import compose_recipe
from command.outcome import ActionResult
from components.config.schema.recipe import read_recipe
from components.run.folder import existing_run_folder


def run(arguments: Arguments) -> ActionResult:
    """Do what the cluster's profile makes the natural thing."""
    if arguments.resume is None:
        scheduler = compose_recipe(arguments).cluster.scheduler
    else:
        cluster = read_recipe(existing_run_folder(arguments.resume, "resume").recipe).cluster
        scheduler = arguments.values.get("cluster.scheduler", cluster.scheduler)
    return perform("train" if scheduler == "none" else "submit", arguments)
