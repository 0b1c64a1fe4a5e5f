"""Retention of checkpoints: which stay, and room for a new one."""

import errno
import math
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from components.checkpoint import metadata
from components.checkpoint.metadata import MARKER, DamagedCheckpointError, Marker, RunProgress
from components.checkpoint.sections import check_names
from components.data.files import sync_folder
from components.run.disk import check_room, write_synced


class SavedCheckpoint(NamedTuple):
    """One checkpoint, as far as it matters for keeping it."""

    tokens: int
    held_out_loss: float | None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """``last`` ones, the first in every ``every_tokens``, and the ``best`` by held-out loss.

    A loss that is not finite is none of the best. Those after ``needed`` tokens stay, too:
    children of the run begin with them.
    """

    last: int
    every_tokens: int | Literal["none"]
    best: int
    needed: frozenset[int] = frozenset()

    def kept(self, saved: Sequence[SavedCheckpoint]) -> set[int]:
        """Choose what stays, by its tokens; removing the others changes no later choice."""
        ordered = sorted(saved, key=lambda checkpoint: checkpoint.tokens)
        judged = sorted(
            (loss, tokens)
            for tokens, loss in ordered
            if loss is not None and math.isfinite(loss)  # NaN compares as neither less nor more
        )
        tokens_kept = {checkpoint.tokens for checkpoint in ordered[-self.last :]}
        tokens_kept |= {tokens for _, tokens in judged[: self.best]}
        needed = self.needed & {checkpoint.tokens for checkpoint in ordered}
        return tokens_kept | needed | self.kept_for_good(ordered)

    def kept_for_good(self, saved: Sequence[SavedCheckpoint]) -> set[int]:
        """Choose the first checkpoint at or after every multiple of ``every_tokens``."""
        if self.every_tokens == "none":
            return set()
        firsts: dict[int, int] = {}
        for tokens in sorted(checkpoint.tokens for checkpoint in saved):
            firsts.setdefault(tokens // self.every_tokens, tokens)
        return {tokens for multiple, tokens in firsts.items() if multiple}


def saved_in(folder: Path) -> dict[Path, SavedCheckpoint]:
    """Read the markers of all complete checkpoints; one that cannot be read has no loss."""
    found = {}
    for checkpoint in metadata.complete_checkpoints(folder):
        loss = None
        with suppress(DamagedCheckpointError):
            loss = metadata.read_marker(checkpoint).held_out_loss
        found[checkpoint] = SavedCheckpoint(metadata.tokens_of(checkpoint), loss)
    return found


def prune(folder: Path, policy: Policy) -> None:
    """Remove what the policy does not keep, oldest first, and what was never completed."""
    saved = saved_in(folder)
    kept = policy.kept(list(saved.values()))
    for checkpoint, one in sorted(saved.items()):
        if one.tokens not in kept:
            (checkpoint / MARKER).unlink()  # without it a half-removed one is not taken
    _remove_incomplete(folder)


def drop_after(checkpoint: Path) -> list[str]:
    """Remove all later ones, weights alone too, the last first, and return their names."""
    folder = checkpoint.parent
    later = later_than(checkpoint)
    for one in later:
        (one / MARKER).unlink()
    _remove_incomplete(folder)
    return [one.name for one in later]


def later_than(checkpoint: Path) -> list[Path]:
    """List the complete checkpoints of more tokens, newest first, weights alone too.

    A run that has gone back writes others of the same names.
    """
    tokens, folder = metadata.tokens_of(checkpoint), checkpoint.parent
    either = metadata.complete_checkpoints(folder, metadata.EITHER)
    return [path for path in either if metadata.tokens_of(path) > tokens]


def _remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted save or an interrupted removal has left."""
    for one in [*folder.glob(".tokens-*"), *folder.glob(".weights-*")]:
        if one.is_dir():
            shutil.rmtree(one)
        else:  # a marker that was to be amended
            one.unlink()
    for one in [*folder.glob("tokens-*/"), *folder.glob("weights-*/")]:
        if not (one / MARKER).exists():
            shutil.rmtree(one)


def beside(target: Path) -> Path:
    """Name the folder in which a checkpoint grows: no reader looks there."""
    return target.with_name(f".{target.name}")


def clear(target: Path, *, needed_bytes: int, files: int) -> bool:
    """Make an empty folder beside, where all of it will fit; can be done twice.

    Returns False where the checkpoint is there already: a run that went on computes it again.

    Raises:
        OSError: the file system forbids it, has too little room or has gone.
    """
    if (target / MARKER).exists():
        return False
    _remove_incomplete(target.parent)
    check_room(target.parent, needed_bytes=needed_bytes, files=files + 2)  # marker and folder
    beside(target).mkdir()
    return True


def amend(checkpoint: Path, progress: RunProgress) -> Marker:
    """Put another ``progress`` of the same tokens beside the same tensors, at once.

    Raises:
        RecipeError: the marker cannot be read.
        OSError: the file system forbids it or has gone.
    """
    there = metadata.read_marker(checkpoint)
    if there.progress == progress:
        return there
    marker = replace(there, progress=progress)
    mark(checkpoint, marker)
    return marker


def mark(checkpoint: Path, marker: Marker) -> None:
    """Put another marker in the place of a checkpoint's own, at once."""
    written = checkpoint.with_name(f".{checkpoint.name}.{MARKER}")
    write_synced(written, marker.dump())
    written.replace(checkpoint / MARKER)
    sync_folder(checkpoint)


def complete(target: Path, marker: Marker) -> None:
    """Mark what all ranks have written beside and let it take its place; can be done twice.

    Raises:
        RecipeError: not all that was written is there.
        OSError: the file system forbids it or has gone.
    """
    grown = beside(target)
    if grown.exists():
        check_names(grown, marker.files)
        write_synced(grown / MARKER, marker.dump())
        sync_folder(grown)
        grown.rename(target)
    sync_folder(target.parent)
    if not (target / MARKER).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
