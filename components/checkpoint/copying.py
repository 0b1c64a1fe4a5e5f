"""Copying a checkpoint out of a folder that its site empties, and checking it there."""

import os
import shutil
from pathlib import Path

import torch.distributed as dist

from components.checkpoint.agreement import by_first, together
from components.checkpoint.disk import Patience
from components.checkpoint.marker import Marker
from components.checkpoint.placing import beside, clear, complete
from components.checkpoint.sections import check_sections
from components.errors import RecipeError

COPY_BYTES = 1 << 24  # at a time


def copy_out(
    checkpoint: Path,
    marker: Marker,
    folder: Path,
    *,
    group: dist.ProcessGroup,
    patience: Patience,
) -> None:
    """Copy a checkpoint into ``folder``, whole or not at all; its files are dealt to the ranks.

    Raises:
        RecipeError: the copy cannot be written, or what is read back is not what was written;
            all ranks raise it.
    """
    target = folder / marker.name
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)

    def begin() -> bool:
        return clear(target, needed_bytes=marker.bytes, files=len(marker.files))

    def copy() -> None:
        for name in sorted(marker.files)[rank::ranks]:
            _copy(checkpoint / name, beside(target) / name)

    if by_first(lambda: patience(folder, begin), group):
        together(lambda: patience(folder, copy), group)
        together(
            lambda: check_sections(beside(target), marker.files, rank=rank, ranks=ranks), group
        )
        by_first(
            lambda: patience(folder, lambda: complete(target, marker)),
            group,
        )


def check_target(folder: Path) -> None:
    """Make the folder that copies go to, before the first is due.

    Raises:
        RecipeError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make {folder}: {error.strerror}"
        remedy = "name a folder that you may write to, or none"
        raise RecipeError("checkpoint.copy_to", problem, remedy) from error


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, COPY_BYTES)
        written.flush()
        os.fsync(written.fileno())
