"""Handling of full, read-only and temporarily unavailable file systems: retries and errors."""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from components.errors import RecipeError

T = TypeVar("T")

# Errors of Lustre, GPFS and NFS while a server is down. ENOENT is included because a missing
# mount looks like a missing folder.
GONE = {
    *(errno.ENOENT, errno.EIO, errno.ESTALE, errno.ENOTCONN),
    *(errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ESHUTDOWN),
}
# Somebody may free space: a purge, a colleague, a reader of the log. A process's own limit can
# also be raised from outside (prlimit). Missing permissions are not retried.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0  # doubled: all ranks use the same server
REMEDIES = {
    errno.ENOENT: "restore the folder if it was removed or moved, or mount its file system; "
    "ranks on several nodes need a file system that all nodes share",
    errno.ENOSPC: "free space, or lower checkpoint.keep or checkpoint.files",
    errno.EDQUOT: "free space in your quota, or lower checkpoint.keep",
    errno.EFBIG: "raise the file size limit (ulimit -f) or checkpoint.files",
    errno.EROFS: "put the run on a writable file system",
    errno.EACCES: "make the folder writable for you",
    errno.EPERM: "make the folder writable for you",
}
LOOK_SECONDS = 0.25
UNSAVED = "; a stop was requested, so the run does not wait and saves nothing more"

_log = logging.getLogger(__name__)


class Patience:
    """Retry tasks for ``seconds`` each while a file system is unavailable or full.

    Retries end when ``stopped`` returns true: a stopping run may be killed before space is
    free. An object is for one thread. The reason for waiting is logged at once: log handlers,
    unlike a stream, fail silently on a full disk.
    """

    def __init__(self, *, seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._seconds = seconds
        self._stopped = stopped
        self._reasons: list[str] = []

    def __call__(self, path: Path, task: Callable[[], T]) -> T:
        """Run ``task``, which must be repeatable, and return its result.

        Raises:
            RecipeError: ``path`` cannot be written. The message contains the reason.
        """
        end, pause = time.monotonic() + self._seconds, PAUSE_SECONDS
        while True:
            try:
                return task()
            except OSError as error:
                left = end - time.monotonic()
                if error.errno not in GONE | FULL or left <= 0:
                    raise _cannot_be_written(path, error) from error
                if (reason := str(error.strerror)) not in self._reasons:
                    self._reasons.append(reason)
                    _log.warning("%s: %s; trying again for %.0f s", path, reason, left)
                if self._is_stopped_within(min(pause, left)):
                    raise _cannot_be_written(path, error, UNSAVED) from error
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def take_reasons(self) -> list[str]:
        """Return and clear the reasons for waiting since the last call."""
        reasons, self._reasons = self._reasons, []
        return reasons

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait in short sleeps, because a signal does not end a long sleep."""
        end = time.monotonic() + seconds
        while not (stopped := self._stopped()) and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return stopped


@contextmanager
def as_recipe_error(folder: Path) -> Iterator[None]:
    """Turn write errors in ``folder`` or below into a RecipeError with a fix."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES.keys() - GONE:
            raise
        place = error.filename2 or error.filename or folder
        raise _cannot_be_written(Path(place), error) from error


def _cannot_be_written(path: Path, error: OSError, more: str = "") -> RecipeError:
    remedy = REMEDIES.get(error.errno or 0, "repair the file system")
    remedy += ", then resume the run: the previous checkpoint is complete"
    return RecipeError(str(path), f"cannot be written: {error.strerror}{more}", remedy)


def check_room(folder: Path, *, needed_bytes: int, files: int) -> None:
    """Check a checkpoint's space and inodes, not quotas; OSError (ENOSPC) if too few."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        problem = f"a checkpoint needs {needed_bytes:_} bytes, but only {free_bytes:_} are free"
        raise OSError(errno.ENOSPC, problem)
    inodes = os.statvfs(folder)
    if inodes.f_files and files > inodes.f_favail:  # some file systems do not count them
        problem = f"a checkpoint needs {files} files, but {inodes.f_favail} inodes are free"
        raise OSError(errno.ENOSPC, problem)


def write_synced(file: Path, text: str) -> None:
    """Write a small file and sync it to disk."""
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
