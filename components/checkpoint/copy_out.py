"""Copies of checkpoints in another folder, such as one that outlives a scratch file system."""

import os
import shutil
from pathlib import Path

from components.checkpoint.metadata import MARKER, Marker, read_marker
from components.checkpoint.retention import beside, clear, complete
from components.checkpoint.sections import check_sections
from components.distributed.collectives import by_first, together
from components.distributed.node_tree import NodeTree
from components.errors import RecipeError
from components.run.disk import Patience


def copy_out(
    checkpoint: Path, marker: Marker, folder: Path, group: NodeTree, patience: Patience
) -> None:
    """Copy a checkpoint into ``folder``, whole or not at all; its files are dealt to the ranks.

    Raises:
        RecipeError: on all ranks, it cannot be written, or is not read back as it was written.
    """
    target = folder / marker.name
    partial, rank, ranks = beside(target), group.rank, group.size

    def begin() -> bool:
        # A run that went back has others of the same tokens.
        if (target / MARKER).exists() and read_marker(target).files != marker.files:
            (target / MARKER).unlink()
        return clear(target, needed_bytes=marker.bytes, files=len(marker.files))

    def copy() -> None:
        for name in sorted(marker.files)[rank::ranks]:
            with (checkpoint / name).open("rb") as read, (partial / name).open("wb") as written:
                shutil.copyfileobj(read, written, 1 << 24)  # bytes at a time
                written.flush()
                os.fsync(written.fileno())

    if by_first(lambda: patience(folder, begin), group):
        together(lambda: patience(folder, copy), group)
        together(lambda: check_sections(partial, marker.files, rank=rank, ranks=ranks), group)
        by_first(lambda: patience(folder, lambda: complete(target, marker)), group)


def check_target(folder: Path) -> None:
    """Make the folder that copies go to; raise RecipeError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make {folder}: {error.strerror}"
        remedy = "name a folder that you may write to, or none"
        raise RecipeError("checkpoint.copy_to", problem, remedy) from error
