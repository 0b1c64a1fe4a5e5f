"""Rehearse every role of a recipe, each in a process of its own, two at a time."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from components.dryrun.roles import Role, roles_of
from components.errors import RecipeError
from components.spec.recipe import Recipe
from components.train.launch import ROOT
from components.train.run_folder import RunFolder, create_run_folder
from components.versions import TORCH, installed, release_of

AT_A_TIME = 2
MESSAGES_SINCE = (2, 11)
_LAST_LINES = 12


class RoleError(Exception):
    """The process of a role did not end well; the message names it and ends with its words."""


def rehearse_roles(recipe: Recipe, say: Callable[[str], None]) -> dict[Role, dict[str, Any]]:
    """Return what each role's step takes, in the order of the pipeline.

    Raises:
        RecipeError: the layout is one that DeepSpeed drives, or that this torch cannot play.
        RoleError: a role's process failed, or was killed.
    """
    if recipe.parallelism.engine != "mesh":
        raise RecipeError(
            "parallelism.engine",
            f"{recipe.parallelism.engine}, whose own collectives no fake group stands for",
            "set parallelism.engine=mesh, which holds and sends the same by ZeRO stage",
        )
    check_messages(recipe)
    roles = roles_of(recipe)
    with tempfile.TemporaryDirectory(prefix="dryrun-") as path:
        folder = create_run_folder(recipe, Path(path))
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            found = pool.map(partial(_play, folder, say), roles)
            return dict(zip(roles, found, strict=True))


def check_messages(recipe: Recipe) -> None:
    """Refuse a pipeline where tensors without values cannot be sent.

    Raises:
        RecipeError: it is one, under torch before 2.11.
    """
    torch = installed().get(TORCH)
    if recipe.parallelism.pipeline > 1 and torch and release_of(torch) < MESSAGES_SINCE:
        raise RecipeError(
            "parallelism.pipeline",
            f"{recipe.parallelism.pipeline} stages, which torch {torch} cannot rehearse",
            "use torch 2.11 or newer for a dry run, or ask action=plan",
        )


def _play(folder: RunFolder, say: Callable[[str], None], role: Role) -> dict[str, Any]:
    command = [sys.executable, "-m", "components.dryrun.role", str(folder.path), str(role.rank)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        words = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        how = f"status {done.returncode}"
        if done.returncode < 0:
            how = f"signal {-done.returncode}, as for want of memory"
        raise RoleError(f"rank {role.rank} ({role.name}) ended with {how}\n{words}")
    found = folder.read_json(f"role-{role.rank}.json")
    say(f"rank {role.rank} ({role.name}): {found['seconds']:.0f} s")
    return found
