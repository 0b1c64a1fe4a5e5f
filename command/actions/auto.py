"""Train where nothing stands in between; submit on a cluster with a scheduler."""

from command.arguments import Arguments
from command.composition.compose import compose
from command.outcome import ActionResult
from command.perform import perform
from components.config.check import read_recipe
from components.run.folder import existing_run_folder


def run(arguments: Arguments) -> ActionResult:
    """Do what the cluster's profile makes the natural thing."""
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
    return perform("train" if scheduler == "none" else "submit", arguments, composed)
