"""The folder of a preparation: made, held by a lock, and told when it is full."""

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import DYING_SECONDS, Holder

FULL = (errno.ENOSPC, errno.EDQUOT)

Say = Callable[[str], None]


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
        problem = f"no space is left in {folder} ({error.strerror})"
        remedy = "free some, and give the same command again: what is finished stays"
        raise RecipeError("data.folder", problem, remedy) from error


def make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Make a folder of the preparation.

    Raises:
        RecipeError: it cannot be made there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if error.errno in FULL:
            raise
        remedy = "name a folder that you may write to"
        raise RecipeError("data.folder", f"cannot write there: {error}", remedy) from error


def alone(folder: Path, say: Say) -> AbstractContextManager[int]:
    """Hold the folder's lock while nobody else works there.

    Raises:
        RecipeError: another preparation does, or workers of one that was killed.
    """
    occupied = partial(_occupied, folder)
    return writer_lock.alone(folder, seconds=DYING_SECONDS, occupied=occupied, say=say)


def share_lock(folder: Path) -> None:
    """Hold the folder's lock with the preparation until this process ends.

    Raises:
        RecipeError: another preparation has taken the folder.
    """
    writer_lock.share(folder, occupied=partial(_occupied, folder))


def _occupied(folder: Path, holder: Holder | None) -> RecipeError:
    who = holder or "a process that left no name"
    way = "wait until it has ended, or stop it"
    return RecipeError(str(folder), f"data is being prepared there by {who}", way)
