"""Send the measurements of a run to its trackers. This needs a network."""

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
from components.run.disk import as_recipe_error
from components.run.writer_lock import lock_folder
from components.tracking import to_mlflow, to_wandb
from components.tracking.run_export import check_installed, read_run_export

SECTION = "tracking"
SERVER = "MLFLOW_TRACKING_URI"
SYNC_LOCK, WAIT_SECONDS = "sync.lock", 10.0
# By default the libraries retry for minutes, and MLflow sends telemetry to its makers.
# Variables that the user has set keep their values.
MANNERS = {
    "WANDB_X_GRAPHQL_RETRY_MAX": "3",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def tracking_of(recipe: Recipe, arguments: Arguments) -> Tracking:
    """Return the recipe's tracking section or ``tracking=NAME``, with the named keys applied.

    Nothing that a run computes depends on tracking, so it may be set or changed after the run.
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
            problem = f"the recipe has no {SECTION}.{tracker}"
            raise RecipeError(key, problem, f"add {SECTION}={tracker}")
    tracking = read_section(Tracking, tree, SECTION)
    if tracking.is_empty:
        remedy = "add tracking=wandb, tracking=mlflow or tracking=both"
        raise RecipeError(SECTION, "the recipe of this run has no tracker", remedy)
    return tracking


def send_runs(arguments: Arguments) -> None:
    """Send ``run=FOLDER`` or ``runs=[...]``. Sending a run again adds only new measurements."""
    os.environ.update(MANNERS | os.environ)  # before any import that reads it
    for folder in named_runs(arguments):
        tracking = tracking_of(read_recipe(folder / "recipe.json"), arguments)
        server = _server(tracking, arguments)
        with as_recipe_error(folder), _sync_lock(folder):
            _send(folder, tracking, server)


def _sync_lock(folder: Path) -> AbstractContextManager[object]:
    """Lock a run folder against a second sender. A read-only folder has no lock."""
    if not os.access(folder, os.W_OK):
        return nullcontext()

    def occupied_error(holder: object) -> RecipeError:
        problem = f"{holder or 'another process'} is sending {folder}"
        return RecipeError("run", problem, "repeat the command when the other ends")

    seconds, say = WAIT_SECONDS, terminal.log_line
    return lock_folder(
        folder, seconds=seconds, occupied=occupied_error, say=say, name=SYNC_LOCK
    )


def _send(folder: Path, tracking: Tracking, server: str) -> None:
    for package in ("wandb", "mlflow"):
        if getattr(tracking, package) != "none":
            check_installed(package)
    record = read_run_export(folder)
    if not isinstance(tracking.mlflow, str):
        sent = to_mlflow.send_rows(record, tracking.mlflow, server)
        terminal.print_output(
            f"{folder}: run {sent} of {tracking.mlflow.experiment} at {server}"
        )
    if not isinstance(tracking.wandb, str):
        if (mode := to_wandb.upload_mode()) == "disabled":
            terminal.print_output(f"{folder}: not sent to W&B: WANDB_MODE disables it")
            return
        written = to_wandb.write_offline_run(record, tracking.wandb, folder)
        terminal.log_line(f"{written}: complete, for wandb sync")
        if mode == "offline":
            terminal.print_output(
                f"{folder}: not uploaded: W&B is offline; run wandb sync {written}"
            )
            return
        to_wandb.upload_offline_run(written)
        terminal.print_output(f"{folder}: run {record.id} of {tracking.wandb.project} at W&B")


def _server(tracking: Tracking, arguments: Arguments) -> str:
    """Return the MLflow server's address. The W&B login stores its own address."""
    if tracking.mlflow == "none":
        if arguments.to is not None:
            remedy = "remove to=; wandb login --host=URL sets the W&B server"
            raise RecipeError("to", "is for MLflow, but tracking has no MLflow", remedy)
        return ""
    server = arguments.to or os.environ.get(SERVER)
    if not server:
        remedy = f"write to=URL, or set {SERVER}"
        raise RecipeError("to", "the address of the MLflow server is not set", remedy)
    return server
