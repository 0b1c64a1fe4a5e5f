"""Copying a checkpoint out of a folder that its site empties, and checking it there."""

import os
import shutil
from pathlib import Path

import torch.distributed as dist

from components.checkpoint.agreement import by_first, together
from components.checkpoint.disk import patiently
from components.checkpoint.marker import Marker
from components.checkpoint.placing import beside, clear, complete
from components.checkpoint.sections import check_sections

COPY_BYTES = 1 << 24  # at a time


def copy_out(
    checkpoint: Path,
    marker: Marker,
    folder: Path,
    *,
    group: dist.ProcessGroup,
    retry_seconds: float,
) -> None:
    """Copy a checkpoint into ``folder``, whole or not at all; its files are dealt to the ranks.

    Raises:
        RecipeError: the copy cannot be written, or what is read back is not what was written;
            all ranks raise it.
    """
    target = folder / marker.name
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)

    def begin() -> bool:
        folder.mkdir(exist_ok=True)
        return clear(target, needed_bytes=marker.bytes, files=len(marker.files))

    def copy() -> None:
        for name in sorted(marker.files)[rank::ranks]:
            _copy(checkpoint / name, beside(target) / name)

    if by_first(lambda: patiently(folder, begin, seconds=retry_seconds), group):
        together(lambda: patiently(folder, copy, seconds=retry_seconds), group)
        together(
            lambda: check_sections(beside(target), marker.files, rank=rank, ranks=ranks), group
        )
        by_first(
            lambda: patiently(folder, lambda: complete(target, marker), seconds=retry_seconds),
            group,
        )


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, COPY_BYTES)
        written.flush()
        os.fsync(written.fileno())
