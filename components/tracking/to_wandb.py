"""W&B: write a run as the folder of an offline run, and upload it with ``wandb sync``.

The folder is rewritten every time. It does not contain discarded steps, and it replaces an
earlier upload with the same id. W&B sets its ``_runtime`` and start itself.
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

FOLDER = "wandb"  # below the run folder; W&B defines the name
TAG_DIGITS = 12  # of fingerprint and commit; W&B limits a tag to 64 characters
SYNCED = "*.wandb.synced"  # marks a complete upload; the exit status is always 0


def upload_mode() -> str:
    """Return ``online``, ``offline`` or ``disabled``: ``WANDB_MODE`` or ``wandb offline``."""
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


def write_offline_run(export: RunExport, section: Wandb, folder: Path) -> Path:
    """Write the offline run below ``folder``, replacing an earlier one, without network access.

    If ``WANDB_DIR`` is set, the run is written there, and other runs there are kept.
    """
    import wandb

    parent = Path(os.environ.get("WANDB_DIR") or folder)
    own = "" if parent == folder else f"offline-run-*-{export.id}"
    for earlier in (parent / FOLDER).glob(own) if own else [parent / FOLDER]:
        shutil.rmtree(earlier, ignore_errors=True)
    facts = export.facts
    tags = [facts["recipe"], facts["scale"], facts["cluster"]]
    tags += [f"{key}-{facts[key][:TAG_DIGITS]}" for key in ("fingerprint", "commit")]
    quiet = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,  # this machine did not train the run
        x_disable_meta=True,
        x_save_requirements=False,
    )
    run = wandb.init(
        mode="offline",
        dir=str(parent),
        id=export.id,
        name=export.name,
        project=section.project,
        entity=section.entity,
        tags=tuple(dict.fromkeys([*tags, *section.tags])),
        config={**export.recipe, "kochbuch": dict(facts)},
        settings=quiet,
    )
    for row in export.metrics_rows:
        run.log({**row.values, "_timestamp": row.time}, step=row.step)
    run.finish(exit_code=0)
    return Path(run.settings.sync_dir)


def upload_offline_run(written: Path) -> None:
    """Upload the folder with ``wandb sync``. Its output goes to standard error."""
    command = [sys.executable, "-m", "wandb", "sync", str(written.resolve())]
    subprocess.run(
        command,
        check=False,
        env=python_environment(),
        cwd=written,  # wandb writes a log here
        stdin=subprocess.DEVNULL,  # no prompts
        stdout=sys.stderr,
    )
    if not any(written.glob(SYNCED)):
        problem = f"W&B did not receive {written}; wandb sync printed the reason above"
        remedy = (
            "log in (wandb login, or WANDB_API_KEY), or copy that folder to a machine with a "
        )
        remedy += "network and run wandb sync there"
        raise RecipeError("tracking.wandb", problem, remedy)
