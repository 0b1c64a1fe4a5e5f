"""Copies of checkpoints in another folder, for example outside a scratch file system."""

import os
import shutil
from pathlib import Path

from components.checkpoint.metadata import MARKER, Marker, read_marker
from components.checkpoint.retention import (
    complete_checkpoint,
    create_partial_folder,
    get_partial_folder,
)
from components.checkpoint.sections import check_sections
from components.distributed.collectives import by_first, gather_results
from components.distributed.node_tree import NodeTree
from components.errors import RecipeError
from components.run.disk import Patience


def copy_out(
    checkpoint: Path, marker: Marker, folder: Path, group: NodeTree, patience: Patience
) -> None:
    """Copy a checkpoint into ``folder`` atomically. Each rank copies a share of the files.

    All ranks raise RecipeError if writing fails, or if the copy's bytes differ when read back.
    """
    target = folder / marker.folder_name
    partial, rank, ranks = get_partial_folder(target), group.global_rank, group.world_size

    def prepare_target() -> bool:
        # A run that was rolled back writes another checkpoint at the same token count.
        if (target / MARKER).exists() and read_marker(target).files != marker.files:
            (target / MARKER).unlink()
        return create_partial_folder(
            target, needed_bytes=marker.total_bytes, files=len(marker.files)
        )

    def copy_files() -> None:
        for name in sorted(marker.files)[rank::ranks]:
            with (checkpoint / name).open("rb") as src, (partial / name).open("wb") as dst:
                shutil.copyfileobj(src, dst, 1 << 24)  # bytes at a time
                dst.flush()
                os.fsync(dst.fileno())

    if by_first(lambda: patience(folder, prepare_target), group):
        gather_results(lambda: patience(folder, copy_files), group)
        gather_results(
            lambda: check_sections(partial, marker.files, rank=rank, ranks=ranks), group
        )
        by_first(lambda: patience(folder, lambda: complete_checkpoint(target, marker)), group)


def check_target(folder: Path) -> None:
    """Create the folder for copies of checkpoints; RecipeError if it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot create {folder}: {error.strerror}"
        remedy = "set it to a writable folder, or to none"
        raise RecipeError("checkpoint.copy_to", problem, remedy) from error
