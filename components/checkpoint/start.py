"""The checkpoint that a run starts from: one function checks it, one puts it into the folder.

A run starts from a checkpoint of another run (``from``), or goes back to an earlier one of its
own. Either becomes the newest full checkpoint of its folder, of the same files where links can
be made. So the run is resumed as any other, in any layout, and what either folder removes later
stays in the other. Optimus (https://arxiv.org/abs/2604.00785, section 4) keeps weights alone
for good, goes back to them after an instability, and starts there with fresh moments.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from components.checkpoint.choice import CheckpointChoice, find_checkpoint
from components.checkpoint.metadata import MARKER, Marker, RunProgress, newest_checkpoint
from components.checkpoint.retention import beside, complete, later_than, mark
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.start import Start
from components.errors import RecipeError
from components.run.disk import check_room, explained
from components.run.event_log import EventLog
from components.run.folder import RunFolder, existing_run_folder

ASIDE = "left"  # a folder among the checkpoints, of those that a run has gone back from


@dataclass(frozen=True)
class FoundStart:
    """A whole checkpoint, and its marker in the folder of the run that starts from it."""

    start: Start
    chosen: CheckpointChoice
    marker: Marker
    event: Literal["branch", "rewind"]


def find_start(recipe: Recipe) -> FoundStart | None:
    """Find the checkpoint of another run that a run starts from; None where it has none.

    Raises:
        RecipeError: no folder of the other run is named, it is of another recipe, or there is
            no whole checkpoint after so many tokens.
    """
    start = recipe.start
    if start is None:
        return None
    if start.run is None or start.at_tokens is None:
        problem, remedy = "no folder of the parent is named", "to train, write from.run=FOLDER"
        raise RecipeError("from.run", problem, remedy)
    folder = existing_run_folder(Path(start.run).expanduser(), "from.run")
    found = _find(folder, start, "from.")
    marker = replace(found.marker, fingerprint=compute_fingerprint(recipe))
    if not start.goes_on:  # another run, so its clock begins at 0
        began = RunProgress(step=0, tokens=0)
        marker = replace(marker, progress=began, held_out_loss=None)
    return replace(found, marker=marker)


def find_earlier(folder: RunFolder, tokens: int, *, fresh_optimizer: bool) -> FoundStart:
    """Find the checkpoint of its own that a run goes back to, by the clock that it has.

    Raises:
        RecipeError: there is no such checkpoint, or it is not whole.
    """
    takes = "weights" if fresh_optimizer else "optimizer"
    section = {"run": str(folder.path), "at_tokens": tokens, "with": takes}
    return _find(folder, Start.model_validate(section), "")


def _find(folder: RunFolder, start: Start, section: str) -> FoundStart:
    """Find a checkpoint in the folder of its run; weights alone need a fresh optimizer."""
    chosen = find_checkpoint(
        folder.checkpoints, start.at_tokens, weights=not start.goes_on, section=section
    )
    fingerprint = compute_fingerprint(read_recipe(folder.recipe))
    wanted = start.fingerprint or fingerprint
    if {fingerprint, chosen.marker.fingerprint} != {wanted}:
        problem = f"{chosen.checkpoint} is of another recipe than {wanted}"
        raise RecipeError(f"{section}run", problem, "name the run that this recipe comes from")
    fresh = chosen.marker.fresh_optimizer or not start.goes_on
    marker = replace(chosen.marker, kind="tokens", fresh_optimizer=fresh)
    return FoundStart(start, chosen, marker, "branch" if section else "rewind")


def put_start(folder: RunFolder, found: FoundStart | None) -> list[str]:
    """Make it the newest full checkpoint of the folder, and note where it is from.

    A run that has a checkpoint needs no other run's. Interrupted, this has done nothing or is
    done by the same call again. Returns the names of later checkpoints, which are set aside.

    Raises:
        RecipeError: the file system forbids it, is full or has gone.
    """
    other = found is not None and found.event == "branch"
    if found is None or (other and newest_checkpoint(folder.checkpoints) is not None):
        return []
    checkpoint, target = found.chosen.checkpoint, folder.checkpoints / found.marker.name
    with explained(folder.path):
        if checkpoint != target:
            _link(checkpoint, target, found.marker)
        elif found.marker != found.chosen.marker:
            mark(target, found.marker)
        later = later_than(target)
        for path in later:
            aside = folder.checkpoints / ASIDE / path.name
            aside.parent.mkdir(exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier rewind
            path.rename(aside)
        if not other:  # it ended further on
            folder.results.unlink(missing_ok=True)
            folder.stop.unlink(missing_ok=True)
        names = [path.name for path in later]
        evidence = found.start.model_dump(mode="json")
        evidence |= {"checkpoint": str(checkpoint.resolve())} | (
            {"left": names} if names else {}
        )
        log = EventLog(file=folder.journal, writes=True, retry_seconds=0.0)
        optimizer = "its optimizer" if found.start.goes_on else "a fresh optimizer"
        cause = f"the user goes back, with {optimizer}"
        if other:
            cause = "begins with a checkpoint of another run"
        log.note(found.event, found.marker.progress, cause, evidence)
    return names


def _link(checkpoint: Path, target: Path, marker: Marker) -> None:
    """Make a full checkpoint of another one, of the same files where links can be made."""
    shutil.rmtree(beside(target), ignore_errors=True)
    beside(target).mkdir()
    for name in marker.files:
        try:
            os.link(checkpoint / name, beside(target) / name)
        except OSError:
            check_room(target.parent, needed_bytes=(checkpoint / name).stat().st_size, files=1)
            shutil.copyfile(checkpoint / name, beside(target) / name)
    if (target / MARKER).exists():  # it is there and damaged
        target.rename(target.with_name(f"damaged-{target.name}"))
    complete(target, marker)
