"""The first checkpoint of a run that comes from another: its parent's, under its own name.

Of the same files where links can be made. So the run is resumed as any other, in any layout,
and what either folder removes later stays in the other.
"""

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from components.checkpoint.choice import CheckpointChoice, checkpoint_of
from components.checkpoint.metadata import (
    Kind,
    Marker,
    RunProgress,
    complete_checkpoints,
    newest_checkpoint,
    tokens_of,
)
from components.checkpoint.rewind import link
from components.config.check import read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.parent import Parent
from components.errors import RecipeError
from components.run.disk import explained
from components.run.event_log import EventLog
from components.run.folder import RunFolder, existing_run_folder


@dataclass(frozen=True)
class Beginning:
    """A whole checkpoint of a parent, and its marker in the child's folder."""

    chosen: CheckpointChoice
    marker: Marker


def find_beginning(recipe: Recipe) -> Beginning | None:
    """Find, alone, the checkpoint that a run begins with; None for one that comes from none.

    Raises:
        RecipeError: no folder of the parent is named, it is of another recipe, or there is no
            whole checkpoint after so many tokens.
    """
    parent = recipe.parent
    if parent is None:
        return None
    if parent.run is None or parent.at_tokens is None:
        problem, remedy = "no folder of the parent is named", "to train, write from.run=FOLDER"
        raise RecipeError("from.run", problem, remedy)
    folder = existing_run_folder(Path(parent.run).expanduser(), "from.run")
    chosen = _choose(folder.checkpoints, parent)
    marks = {compute_fingerprint(read_recipe(folder.recipe)), chosen.marker.fingerprint}
    if marks != {parent.fingerprint}:
        problem = f"{chosen.checkpoint} is of another recipe than {parent.fingerprint}"
        raise RecipeError("from.run", problem, "name the run that this recipe comes from")
    marker = replace(chosen.marker, kind="tokens", fingerprint=compute_fingerprint(recipe))
    if not parent.goes_on:
        began = RunProgress(step=0, tokens=0)
        marker = replace(marker, progress=began, held_out_loss=None, fresh_optimizer=True)
    return Beginning(chosen, marker)


def _choose(folder: Path, parent: Parent) -> CheckpointChoice:
    kinds: tuple[Kind, ...] = ("tokens",) if parent.goes_on else ("tokens", "weights")
    there = {tokens_of(one) for kind in kinds for one in complete_checkpoints(folder, kind)}
    wanted, known = parent.at_tokens or 0, sorted(there)
    if wanted in there:
        return checkpoint_of(folder, wanted, weights=not parent.goes_on)
    place = bisect(known, wanted)
    near = " and ".join(f"{one:_}" for one in known[max(0, place - 1) : place + 1])
    problem = f"{wanted:_} has no checkpoint in {folder}"
    remedy = f"the nearest: {near}" if near else "there is none"
    raise RecipeError("from.at_tokens", problem, remedy)


def begin(folder: RunFolder, recipe: Recipe, beginning: Beginning | None) -> None:
    """Put the first checkpoint into a run folder that has none, and note where it is from.

    Interrupted it is done by the same call again.

    Raises:
        OSError: the file system forbids it, is full or has gone.
    """
    if beginning is None or newest_checkpoint(folder.checkpoints) is not None:
        return
    marker, parent = beginning.marker, recipe.parent
    assert parent is not None, "else it has no beginning"
    link(beginning.chosen.checkpoint, folder.checkpoints / marker.name, marker)
    evidence = parent.model_dump(mode="json")
    evidence |= {"checkpoint": str(beginning.chosen.checkpoint.resolve())}
    log = EventLog(file=folder.journal, writes=True, retry_seconds=0.0)
    log.note("branch", marker.progress, "begins with a checkpoint of another run", evidence)


def find_initial_checkpoint(recipe: Recipe) -> Callable[[RunFolder], None]:
    """Find the checkpoint that a run begins with; the result puts it into a run folder.

    A run without a parent needs none, and neither does one with a checkpoint of its own.

    Raises:
        RecipeError: the run has a parent, and there is no such checkpoint.
    """
    if recipe.parent is None:
        return lambda folder: None
    found = find_beginning(recipe)

    def put(folder: RunFolder) -> None:
        with explained(folder.path):
            begin(folder, recipe, found)

    return put
