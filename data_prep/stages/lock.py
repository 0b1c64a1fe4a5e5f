"""One preparation at a time in a folder, no worker that outlives it; disks that are full.

A worker asks the kernel to be killed with its parent, and holds the folder's lock with it:
whoever comes next sees if somebody still works there.
"""

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import DYING_SECONDS, Holder

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


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def alone(folder: Path, say: Callable[[str], None]) -> AbstractContextManager[int]:
    """Hold the folder's lock while nobody else works there.

    Raises:
        RecipeError: another preparation does, or workers of one that was killed.
    """
    occupied = partial(_occupied, folder)
    return writer_lock.alone(folder, seconds=DYING_SECONDS, occupied=occupied, say=say)


def work_under(parent: int, folder: Path) -> None:
    """Make this process a worker: it ends with ``parent``, and until then holds the lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["RAYON_NUM_THREADS"] = "1"  # of tokenizers: a worker is one of many
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    share_lock(folder)


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
