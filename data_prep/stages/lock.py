"""One preparation at a time in a folder, and no worker that outlives it.

A worker asks the kernel to be killed with its parent, and holds a lock of its own: whoever
comes next sees if somebody still works there.
"""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from components.errors import RecipeError

LOCK, WORKERS = "lock", "workers.lock"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
DYING_SECONDS = 5.0  # what killed workers may take to end
LOCKLESS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock while nobody else works there.

    Raises:
        RecipeError: another preparation does, or workers of one that was killed.
    """
    with _opened(folder / LOCK) as lock, _opened(folder / WORKERS) as workers:
        if not _taken(lock, folder, say):
            raise _occupied(folder, "another preparation works there")
        end = time.monotonic() + DYING_SECONDS
        while not _taken(workers, folder, say):
            if time.monotonic() > end:
                raise _occupied(folder, "workers of a preparation that was killed go on there")
            time.sleep(0.1)
        fcntl.flock(workers, fcntl.LOCK_UN)
        yield


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
    """Hold the workers' lock until this process ends."""
    descriptor = os.open(folder / WORKERS, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(descriptor: int, folder: Path, say: Callable[[str], None]) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise
        say(f"data: no locks in {folder}: see that nobody else prepares there")
    return True


def _occupied(folder: Path, problem: str) -> RecipeError:
    return RecipeError(str(folder), problem, "wait until it has ended, or stop it")
