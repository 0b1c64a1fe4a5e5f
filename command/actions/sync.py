"""Send the measurements of a run to its trackers; the one action that a network is for."""

import os
from pathlib import Path

from command.arguments import Arguments
from command.named_runs import named_runs
from command.outcome import Outcome
from command.tracked import tracking_of
from components import terminal
from components.checkpoint.disk import explained
from components.errors import RecipeError
from components.spec.recipe import read_recipe
from components.spec.tracking import Tracking
from components.tracking import to_mlflow, to_wandb
from components.tracking.installed import check_installed
from components.tracking.story import tell

SERVER = "MLFLOW_TRACKING_URI"
# The libraries would try for minutes, and MLflow tells its makers of its use. What the user has
# set stays.
MANNERS = {
    "WANDB_X_GRAPHQL_RETRY_MAX": "3",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def run(arguments: Arguments) -> Outcome:
    """Send ``run=FOLDER`` or ``runs=[...]``; sent again, a run gets what is new."""
    os.environ.update(MANNERS | os.environ)  # before anything imports what reads it
    for folder in named_runs(arguments):
        recipe = read_recipe(folder / "recipe.json")
        tracking = tracking_of(recipe, arguments)
        server = _server(tracking, arguments)
        with explained(folder):
            _send(folder, tracking, server)
    return Outcome()


def _send(folder: Path, tracking: Tracking, server: str) -> None:
    for package in ("wandb", "mlflow"):
        if getattr(tracking, package) != "none":
            check_installed(package)
    told = tell(folder)
    if not isinstance(tracking.mlflow, str):
        sent = to_mlflow.send(told, tracking.mlflow, server)
        terminal.tell(f"{folder}: run {sent} of {tracking.mlflow.experiment} at {server}")
    if not isinstance(tracking.wandb, str):
        written = to_wandb.write(told, tracking.wandb, folder)
        terminal.say(f"{written}: whole, for wandb sync")
        to_wandb.upload(written)
        terminal.tell(f"{folder}: run {told.id} of {tracking.wandb.project} at W&B")


def _server(tracking: Tracking, arguments: Arguments) -> str:
    """Say where MLflow is; who is logged in to W&B has said where that is.

    Raises:
        RecipeError: nobody has said it, or only W&B is asked for.
    """
    if tracking.mlflow == "none":
        if arguments.to is not None:
            remedy = "leave it out; wandb login --host=URL says where W&B is"
            raise RecipeError("to", "names a server of MLflow, which is not asked for", remedy)
        return ""
    server = arguments.to or os.environ.get(SERVER)
    if not server:
        remedy = f"write to=URL, or set {SERVER}"
        raise RecipeError("to", "nobody has said where the server of MLflow is", remedy)
    return server
