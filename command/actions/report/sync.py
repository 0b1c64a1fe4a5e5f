"""Send the measurements of a run to its trackers, which a network is needed for."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from command.arguments import Arguments
from command.composition.conf_groups import compose_group
from command.recipe.path_checks import named_runs
from components import terminal
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.monitoring import Tracking
from components.config.validation import read_section
from components.errors import RecipeError
from components.run.disk import explained
from components.run.writer_lock import alone
from components.tracking import to_mlflow, to_wandb
from components.tracking.run_export import check_installed, tell

SECTION = "tracking"
SERVER = "MLFLOW_TRACKING_URI"
SYNC_LOCK, WAIT_SECONDS = "sync.lock", 10.0
# The libraries would try for minutes, and MLflow tells its makers of its use. What the user has
# set stays.
MANNERS = {
    "WANDB_X_GRAPHQL_RETRY_MAX": "3",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def tracking_of(recipe: Recipe, arguments: Arguments) -> Tracking:
    """Take the recipe's own section, or ``tracking=NAME``, with the keys that are named.

    Nothing that a run computes depends on it, so it may be said, or changed, when all is done.

    Raises:
        RecipeError: a key that is unknown or of another type, or no tracker at all.
    """
    tree = recipe.tracking.model_dump(mode="json")
    if SECTION in arguments.choices:
        tree = compose_group(SECTION, arguments.choices[SECTION])
    for key, value in arguments.values.items():
        _, tracker, *names = key.split(".")
        if not names:
            tree[tracker] = value
        elif isinstance(tree.get(tracker), dict):
            tree[tracker][".".join(names)] = value
        else:
            problem = f"there is no {SECTION}.{tracker} that could have it"
            raise RecipeError(key, problem, f"add {SECTION}={tracker}")
    tracking = read_section(Tracking, tree, SECTION)
    if tracking.is_empty:
        remedy = "add tracking=wandb, tracking=mlflow or tracking=both"
        raise RecipeError(SECTION, "this run's recipe names no tracker", remedy)
    return tracking


def send_runs(arguments: Arguments) -> None:
    """Send ``run=FOLDER`` or ``runs=[...]``; sent again, a run gets what is new."""
    os.environ.update(MANNERS | os.environ)  # before anything imports what reads it
    for folder in named_runs(arguments):
        tracking = tracking_of(read_recipe(folder / "recipe.json"), arguments)
        server = _server(tracking, arguments)
        with explained(folder), _sync_lock(folder):
            _send(folder, tracking, server)


def _sync_lock(folder: Path) -> AbstractContextManager[object]:
    """Let one process at a time send a run; a folder that cannot be written has no lock."""
    if not os.access(folder, os.W_OK):
        return nullcontext()

    def occupied(holder: object) -> RecipeError:
        problem = f"{folder} is being sent by {holder or 'another process'}"
        return RecipeError("run", problem, "repeat the command when that one has ended")

    seconds, say = WAIT_SECONDS, terminal.say
    return alone(folder, seconds=seconds, occupied=occupied, say=say, name=SYNC_LOCK)


def _send(folder: Path, tracking: Tracking, server: str) -> None:
    for package in ("wandb", "mlflow"):
        if getattr(tracking, package) != "none":
            check_installed(package)
    told = tell(folder)
    if not isinstance(tracking.mlflow, str):
        sent = to_mlflow.send(told, tracking.mlflow, server)
        terminal.tell(f"{folder}: run {sent} of {tracking.mlflow.experiment} at {server}")
    if not isinstance(tracking.wandb, str):
        if (mode := to_wandb.upload_mode()) == "disabled":
            terminal.tell(f"{folder}: not sent to W&B, which WANDB_MODE disables")
            return
        written = to_wandb.write(told, tracking.wandb, folder)
        terminal.say(f"{written}: whole, for wandb sync")
        if mode == "offline":
            terminal.tell(f"{folder}: not uploaded, since W&B is offline: wandb sync {written}")
            return
        to_wandb.upload(written)
        terminal.tell(f"{folder}: run {told.id} of {tracking.wandb.project} at W&B")


def _server(tracking: Tracking, arguments: Arguments) -> str:
    """Return where MLflow is; who is logged in to W&B has said where that is."""
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
