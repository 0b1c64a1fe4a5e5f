"""Dry run of the roles of a recipe, each in a process of its own, two at a time.

Ranks of one stage differ in their data alone. Where rows do not divide evenly the first rank of
every axis holds the most; of equal stages the first has the most microbatches in flight.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from components.config.schema.recipe import Recipe
from components.errors import RecipeError
from components.planner.job import layout_of
from components.run.folder import RunFolder, create_run_folder
from components.train.launch import ROOT
from components.versions import TORCH, installed, release_of


@dataclass(frozen=True, kw_only=True)
class Role:
    """Pipeline ranks that do the same, and the rank of the world that plays it for them all.

    ``layers`` are those of each of its stages; ``first`` has the embedding, ``last`` the loss.
    ``stands_for`` counts ranks of the whole world.
    """

    rank: int
    pipeline_rank: int
    layers: tuple[int, ...]
    first: bool
    last: bool
    stands_for: int

    @property
    def name(self) -> str:
        ends = ["first"] * self.first + ["last"] * self.last
        return f"{' and '.join(ends) or 'inner'}, {' + '.join(map(str, self.layers))} layers"


def roles_of(recipe: Recipe) -> tuple[Role, ...]:
    """List the roles in the order of the pipeline."""
    pipeline, stages = recipe.parallelism.pipeline, recipe.derived.layers_by_stage
    layout = layout_of(
        recipe.parallelism, layers=stages, devices_per_node=recipe.cluster.devices_per_node
    )
    inner = layout.rank_order[layout.rank_order.index("pipeline") + 1 :]
    stride = prod(getattr(layout, axis) for axis in inner)  # ranks from a stage to the next
    found: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank in range(pipeline):
        kind = stages[rank::pipeline], rank == 0, rank == (len(stages) - 1) % pipeline
        found.setdefault(kind, []).append(rank)
    return tuple(
        Role(
            rank=ranks[0] * stride,
            pipeline_rank=ranks[0],
            layers=layers,
            first=first,
            last=last,
            stands_for=len(ranks) * recipe.cluster.ranks // pipeline,
        )
        for (layers, first, last), ranks in found.items()
    )


_AT_A_TIME = 2
_MESSAGES_SINCE = (2, 11)  # the torch that sends tensors without values
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
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            found = pool.map(partial(_play, folder, say), roles)
            return dict(zip(roles, found, strict=True))


def check_messages(recipe: Recipe) -> None:
    """Refuse a pipeline where tensors without values cannot be sent.

    Raises:
        RecipeError: it is one, under torch before 2.11.
    """
    torch = installed().get(TORCH)
    if recipe.parallelism.pipeline > 1 and torch and release_of(torch) < _MESSAGES_SINCE:
        raise RecipeError(
            "parallelism.pipeline",
            f"{recipe.parallelism.pipeline} stages, which torch {torch} cannot rehearse",
            "use torch 2.11 or newer for a dry run, or ask action=plan",
        )


def _play(folder: RunFolder, say: Callable[[str], None], role: Role) -> dict[str, Any]:
    program = [sys.executable, "-m", "components.dryrun.rehearsal"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*program, str(folder.path), str(role.rank)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
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
