"""Making room for a checkpoint, and letting it take its place once all of it is written."""

import errno
import os
from dataclasses import replace
from pathlib import Path

from components.checkpoint.disk import check_room, write_synced
from components.checkpoint.keeping import remove_incomplete
from components.checkpoint.marker import MARKER, Marker, Progress, read_marker
from components.checkpoint.sections import check_names
from components.data.files import sync_folder


def beside(target: Path) -> Path:
    """Name the folder in which a checkpoint grows: no reader looks there."""
    return target.with_name(f".{target.name}")


def clear(target: Path, *, needed_bytes: int, files: int) -> bool:
    """Make an empty folder beside, where all of it will fit; can be done twice.

    Returns False where the checkpoint is there already: a run that goes on from it computes
    the same again.

    Raises:
        OSError: the file system forbids it, has too little room or has gone.
    """
    if (target / MARKER).exists():
        return False
    remove_incomplete(target.parent)
    check_room(target.parent, needed_bytes=needed_bytes, files=files + 2)  # marker and folder
    beside(target).mkdir()
    return True


def amend(checkpoint: Path, progress: Progress) -> Marker:
    """Put another ``progress`` of the same tokens beside the same tensors, at once.

    Raises:
        RecipeError: the marker cannot be read.
        OSError: the file system forbids it or has gone.
    """
    marker = replace(read_marker(checkpoint), progress=progress)
    written = checkpoint.with_name(f".{checkpoint.name}.{MARKER}")
    write_synced(written, marker.dump())
    written.replace(checkpoint / MARKER)
    sync_folder(checkpoint)
    return marker


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
