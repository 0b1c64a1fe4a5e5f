"""Retention of checkpoints: which ones to keep, and the steps to add a new one."""

import errno
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from components.checkpoint import metadata
from components.checkpoint.metadata import MARKER, DamagedCheckpointError, Marker, RunProgress
from components.checkpoint.sections import check_names
from components.data.files import sync_folder
from components.run.disk import check_room, write_synced


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Retention policy: the union of the checkpoints that each field selects.

    ``every_tokens`` selects the first after each multiple, ``best`` the number with the lowest
    finite held-out loss, ``needed`` the token counts that child runs start from.
    """

    last: int
    every_tokens: int | Literal["none"]
    best: int
    needed: frozenset[int] = frozenset()

    def select_retained(self, losses: Mapping[int, float | None]) -> set[int]:
        """Return the token counts to keep. Removing the others changes no later decision.

        ``losses`` are the held-out losses of all checkpoints, by their token counts.
        """
        judged = sorted(
            (loss, tokens)
            for tokens, loss in losses.items()
            if loss is not None and math.isfinite(loss)  # NaN breaks sorting
        )
        best = {tokens for _, tokens in judged[: self.best]}
        newest = sorted(losses)[-self.last :]
        return best.union(newest, self.needed & losses.keys(), self.select_permanent(losses))

    def select_permanent(self, saved: Iterable[int]) -> set[int]:
        """Return the first token count at or after each multiple of ``every_tokens``."""
        if self.every_tokens == "none":
            return set()
        firsts: dict[int, int] = {}
        for tokens in sorted(saved):
            firsts.setdefault(tokens // self.every_tokens, tokens)
        return {tokens for multiple, tokens in firsts.items() if multiple}


def prune_checkpoints(folder: Path, policy: Policy) -> None:
    """Remove checkpoints that the policy does not keep, oldest first, and incomplete ones."""
    losses: dict[int, float | None] = {}
    saved = list(metadata.complete_checkpoints(folder))
    for checkpoint in saved:
        tokens = metadata.tokens_of(checkpoint)
        losses[tokens] = None
        with suppress(DamagedCheckpointError):
            losses[tokens] = metadata.read_marker(checkpoint).held_out_loss
    retained_tokens = policy.select_retained(losses)
    for checkpoint in sorted(saved):
        if metadata.tokens_of(checkpoint) not in retained_tokens:
            (checkpoint / MARKER).unlink()  # first: no run loads a half-removed checkpoint
    _remove_incomplete(folder)


def drop_after(checkpoint: Path) -> list[str]:
    """Remove all later checkpoints, full and weights-only, newest first; return their names."""
    folder = checkpoint.parent
    later = later_than(checkpoint)
    for path in later:
        (path / MARKER).unlink()
    _remove_incomplete(folder)
    return [path.name for path in later]


def later_than(checkpoint: Path) -> list[Path]:
    """List the complete checkpoints of more tokens, full and weights-only, newest first.

    A run that was rolled back writes new checkpoints of the same names.
    """
    tokens, folder = metadata.tokens_of(checkpoint), checkpoint.parent
    either = metadata.complete_checkpoints(folder, metadata.EITHER)
    return [path for path in either if metadata.tokens_of(path) > tokens]


def _remove_incomplete(folder: Path) -> None:
    """Remove the leftovers of interrupted saves and interrupted removals."""
    for path in [*folder.glob(".tokens-*"), *folder.glob(".weights-*")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:  # a temporary marker file
            path.unlink()
    for path in [*folder.glob("tokens-*/"), *folder.glob("weights-*/")]:
        if not (path / MARKER).exists():
            shutil.rmtree(path)


def get_partial_folder(target: Path) -> Path:
    """Return the temporary folder for a checkpoint during its save. Readers ignore it."""
    return target.with_name(f".{target.name}")


def create_partial_folder(target: Path, *, needed_bytes: int, files: int) -> bool:
    """Create an empty temporary folder after a check of the free space. Can be repeated.

    Returns False if the checkpoint exists: a resumed run computed it again. Raises OSError
    without permission or space, or if the file system is unavailable.
    """
    if (target / MARKER).exists():
        return False
    _remove_incomplete(target.parent)
    check_room(target.parent, needed_bytes=needed_bytes, files=files + 2)  # marker and folder
    get_partial_folder(target).mkdir()
    return True


def replace_progress(checkpoint: Path, progress: RunProgress) -> Marker:
    """Replace the progress in a checkpoint's marker atomically. The tensors stay.

    Raises RecipeError for an unreadable marker, OSError for errors of the file system.
    """
    existing = metadata.read_marker(checkpoint)
    if existing.progress == progress:
        return existing
    marker = replace(existing, progress=progress)
    replace_marker(checkpoint, marker)
    return marker


def replace_marker(checkpoint: Path, marker: Marker) -> None:
    """Replace a checkpoint's marker atomically."""
    temporary = checkpoint.with_name(f".{checkpoint.name}.{MARKER}")
    write_synced(temporary, marker.to_json())
    temporary.replace(checkpoint / MARKER)
    sync_folder(checkpoint)


def complete_checkpoint(target: Path, marker: Marker) -> None:
    """Write the marker into the temporary folder and rename the folder. Can be repeated.

    Raises RecipeError if a file of a rank is incomplete, OSError for errors of the file system.
    """
    partial = get_partial_folder(target)
    if partial.exists():
        check_names(partial, marker.files)
        write_synced(partial / MARKER, marker.to_json())
        sync_folder(partial)
        partial.rename(target)
    sync_folder(target.parent)
    if not (target / MARKER).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
