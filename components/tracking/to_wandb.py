"""A run as the folder of an offline run of W&B, and its upload by ``wandb sync``.

The folder is written anew each time: what a run threw away is not in it, and it replaces what
was uploaded under the same id. W&B sets its ``_runtime`` and start itself.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from components.child_process import python_environment
from components.config.schema.monitoring import Wandb
from components.errors import RecipeError
from components.tracking.run_export import RunExport

FOLDER = "wandb"  # below the run folder; W&B chooses the name
TAG_DIGITS = 12  # of fingerprint and commit; a tag has 64 characters at most
SYNCED = "*.wandb.synced"  # left where an upload is complete; the status is 0 in any case


def upload_mode() -> str:
    """Return ``online``, ``offline`` or ``disabled``, by ``WANDB_MODE`` or ``wandb offline``.

    Raises:
        RecipeError: W&B knows no such mode, or refuses another setting of the environment.
    """
    import wandb

    try:
        mode = str(wandb.setup().settings.mode)
    except (ValueError, wandb.Error) as error:
        problem = " ".join(str(error).split())
        remedy = "set WANDB_MODE to online, offline or disabled, or unset it"
        raise RecipeError("tracking.wandb", problem, remedy) from None
    return {"dryrun": "offline", "disabled": "disabled", "offline": "offline"}.get(
        mode, "online"
    )


def write(told: RunExport, section: Wandb, folder: Path) -> Path:
    """Write the offline run below ``folder`` in place of an earlier one; no network is used.

    With ``WANDB_DIR`` it goes there, where other runs are left alone.
    """
    import wandb

    place = Path(os.environ.get("WANDB_DIR") or folder)
    own = "" if place == folder else f"offline-run-*-{told.id}"
    for earlier in (place / FOLDER).glob(own) if own else [place / FOLDER]:
        shutil.rmtree(earlier, ignore_errors=True)
    facts = told.facts
    tags = [facts["recipe"], facts["scale"], facts["cluster"]]
    tags += [f"{key}-{facts[key][:TAG_DIGITS]}" for key in ("fingerprint", "commit")]
    quiet = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,  # this machine is not the run's
        x_disable_meta=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        mode="offline",
        dir=str(place),
        id=told.id,
        name=told.name,
        project=section.project,
        entity=section.entity,
        tags=tuple(dict.fromkeys([*tags, *section.tags])),
        config={**told.recipe, "kochbuch": dict(facts)},
        settings=quiet,
    )
    for row in told.rows:
        run.log({**row.values, "_timestamp": row.time}, step=row.step)
    run.finish(exit_code=0)
    return Path(run.settings.sync_dir)


def upload(written: Path) -> None:
    """Let ``wandb sync`` upload the folder; what it says goes to standard error.

    Raises:
        RecipeError: it did not come to its end.
    """
    command = [sys.executable, "-m", "wandb", "sync", str(written.resolve())]
    subprocess.run(
        command,
        check=False,
        env=python_environment(),
        cwd=written,  # where it leaves a log of its own
        stdin=subprocess.DEVNULL,  # no question
        stdout=sys.stderr,
    )
    if not any(written.glob(SYNCED)):
        problem = f"W&B has not got {written}; wandb sync has said above why"
        remedy = (
            "log in (wandb login, or WANDB_API_KEY), or copy that folder to where there is a "
        )
        remedy += "network and wandb sync it there"
        raise RecipeError("tracking.wandb", problem, remedy)
