"""A full disk, told as what it is."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.errors import RecipeError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Turn the system's error into one that says how to go on.

    Raises:
        RecipeError: the disk or the user's quota is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RecipeError(
            "data.folder",
            f"no space is left in {folder} ({error.strerror})",
            "free some, and give the same command again: what is finished stays",
        ) from error
