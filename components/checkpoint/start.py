"""Start checkpoint of a run: find and check it, and put it into the run's folder.

A run starts from a checkpoint of another run (``from``), or is rewound to an earlier one of its
own (after an instability: Optimus, https://arxiv.org/abs/2604.00785, section 4). Either becomes
the newest full checkpoint in the run's folder, by hard links if possible: a file that one
folder removes stays in the other. The run then resumes in any layout.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from components.checkpoint.choice import CheckpointChoice, find_checkpoint
from components.checkpoint.metadata import MARKER, Marker, RunProgress, newest_checkpoint
from components.checkpoint.retention import (
    complete_checkpoint,
    get_partial_folder,
    later_than,
    replace_marker,
)
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.start import Start
from components.errors import RecipeError
from components.run.disk import as_recipe_error, check_room
from components.run.event_log import EventLog
from components.run.folder import RunFolder, existing_run_folder

ASIDE = "left"  # subfolder for the checkpoints that a rewind undid


@dataclass(frozen=True)
class InitialCheckpoint:
    """Start checkpoint: a whole checkpoint, and its new marker in the folder of the run."""

    start: Start
    chosen: CheckpointChoice
    marker: Marker
    event: Literal["branch", "rewind"]


def find_start(recipe: Recipe) -> InitialCheckpoint | None:
    """Find the checkpoint of another run that a run starts from; None without ``from``.

    Raises RecipeError if the recipe names no folder of a run, or if that run has another recipe
    or no whole checkpoint at this token count.
    """
    start = recipe.start
    if start is None:
        return None
    if start.run is None or start.at_tokens is None:
        problem, remedy = "the parent's folder is not set", "to train, set from.run=FOLDER"
        raise RecipeError("from.run", problem, remedy)
    folder = existing_run_folder(Path(start.run).expanduser(), "from.run")
    parent = _find(folder, start, "from.")
    marker = replace(parent.marker, fingerprint=compute_fingerprint(recipe))
    if not start.goes_on:  # a new run: its progress starts at 0
        progress = RunProgress(step=0, tokens=0)
        marker = replace(marker, progress=progress, held_out_loss=None)
    return replace(parent, marker=marker)


def find_earlier(folder: RunFolder, tokens: int, *, fresh_optimizer: bool) -> InitialCheckpoint:
    """Find the run's own checkpoint for a rewind; RecipeError if it is missing or not whole."""
    takes = "weights" if fresh_optimizer else "optimizer"
    section = {"run": str(folder.path), "at_tokens": tokens, "with": takes}
    return _find(folder, Start.model_validate(section), "")


def _find(folder: RunFolder, start: Start, section: str) -> InitialCheckpoint:
    """Find a checkpoint in its run's folder; weights-only ones need a fresh optimizer."""
    chosen = find_checkpoint(
        folder.checkpoints, start.at_tokens, weights=not start.goes_on, section=section
    )
    fingerprint = compute_fingerprint(read_recipe(folder.recipe))
    wanted = start.fingerprint or fingerprint
    if {fingerprint, chosen.marker.fingerprint} != {wanted}:
        problem = f"{chosen.checkpoint} does not have the recipe fingerprint {wanted}"
        raise RecipeError(f"{section}run", problem, "set it to the run that the recipe is from")
    fresh = chosen.marker.fresh_optimizer or not start.goes_on
    marker = replace(chosen.marker, kind="tokens", fresh_optimizer=fresh)
    return InitialCheckpoint(start, chosen, marker, "branch" if section else "rewind")


def put_start(folder: RunFolder, initial: InitialCheckpoint | None) -> list[str]:
    """Make ``initial`` the newest full checkpoint of the folder, and record its origin.

    Another run's checkpoint is ignored if the folder already has one. Repeat interrupted calls.
    Returns the names of later checkpoints, which move to `ASIDE`.
    """
    from_other_run = initial is not None and initial.event == "branch"
    if initial is None or (
        from_other_run and newest_checkpoint(folder.checkpoints) is not None
    ):
        return []
    checkpoint, target = (
        initial.chosen.checkpoint,
        folder.checkpoints / initial.marker.folder_name,
    )
    with as_recipe_error(folder.path):
        if checkpoint != target:
            _link(checkpoint, target, initial.marker)
        elif initial.marker != initial.chosen.marker:
            replace_marker(target, initial.marker)
        later = later_than(target)
        for path in later:
            aside = folder.checkpoints / ASIDE / path.name
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier rewind
            path.rename(aside)
        if not from_other_run:  # results and stop file are from a later step
            folder.results.unlink(missing_ok=True)
            folder.stop.unlink(missing_ok=True)
        names = [path.name for path in later]
        evidence = initial.start.model_dump(mode="json")
        evidence |= {"checkpoint": str(checkpoint.resolve())} | (
            {"left": names} if names else {}
        )
        log = EventLog(file=folder.events, writes=True, retry_seconds=0.0)
        optimizer = "its optimizer" if initial.start.goes_on else "a fresh optimizer"
        cause = f"the user rewound the run, with {optimizer}"
        if from_other_run:
            cause = "starts from a checkpoint of another run"
        log.write_event(initial.event, initial.marker.progress, cause, evidence)
    return names


def _link(checkpoint: Path, target: Path, marker: Marker) -> None:
    """Create a full checkpoint from another one, by hard links if possible, else by copies."""
    shutil.rmtree(get_partial_folder(target), ignore_errors=True)
    get_partial_folder(target).mkdir()
    for name in marker.files:
        try:
            os.link(checkpoint / name, get_partial_folder(target) / name)
        except OSError:
            check_room(target.parent, needed_bytes=(checkpoint / name).stat().st_size, files=1)
            shutil.copyfile(checkpoint / name, get_partial_folder(target) / name)
    if (target / MARKER).exists():  # an existing checkpoint, which is damaged
        target.rename(target.with_name(f"damaged-{target.name}"))
    complete_checkpoint(target, marker)
