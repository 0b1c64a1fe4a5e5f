"""File systems that fill up, forbid, or go away for a while: what to wait for, what to say."""

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

# What Lustre, GPFS and NFS answer while a server is away; a missing folder is ENOENT where the
# mount itself is gone.
GONE = {
    *(errno.ENOENT, errno.EIO, errno.ESTALE, errno.ENOTCONN),
    *(errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ESHUTDOWN),
}
# Others make room: a purge, a colleague, whoever reads the log; a process's own limit can be
# raised from outside, too (prlimit). Where permission is missing nobody does.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0  # doubled: all ranks ask the same server
REMEDIES = {
    errno.ENOENT: "bring the folder back if it was removed or moved, or mount its file system; "
    "ranks on several nodes need a file system that all nodes share",
    errno.ENOSPC: "make room or lower checkpoint.keep or checkpoint.files",
    errno.EDQUOT: "make room in your quota or lower checkpoint.keep",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f) or checkpoint.files",
    errno.EROFS: "put the run on a file system that can be written",
    errno.EACCES: "make the folder writable for you",
    errno.EPERM: "make the folder writable for you",
}
LOOK_SECONDS = 0.25
UNSAVED = "; the run was asked to stop, so nobody waits for it, and nothing more is saved"

_log = logging.getLogger(__name__)


class Patience:
    """Do things again and again for ``seconds`` each while a file system is away or full.

    Nobody waits any longer once ``stopped`` says so: a run that was asked to stop may be killed
    before there is room. One thread's. What is waited for is logged at once: handlers, unlike
    a stream, fail silently on a full disk.
    """

    def __init__(self, *, seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._seconds = seconds
        self._stopped = stopped
        self._reasons: list[str] = []

    def __call__(self, path: Path, task: Callable[[], T]) -> T:
        """Do ``task``, which has to be one that can be done twice.

        Raises:
            RecipeError: ``path`` cannot be written, and why.
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
        """Report what was waited for since this was asked last."""
        reasons, self._reasons = self._reasons, []
        return reasons

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait so long, in short sleeps: a signal alone does not end a longer one."""
        end = time.monotonic() + seconds
        while not (stopped := self._stopped()) and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return stopped


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Describe what a user can do where ``folder``, or what is below it, refuses to be written.

    Raises:
        RecipeError: what cannot be written, and why.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES.keys() - GONE:
            raise
        place = error.filename2 or error.filename or folder
        raise _cannot_be_written(Path(place), error) from error


def _cannot_be_written(path: Path, error: OSError, more: str = "") -> RecipeError:
    remedy = REMEDIES.get(error.errno or 0, "mend the file system")
    remedy += ", then resume the run: the checkpoint before is whole"
    return RecipeError(str(path), f"cannot be written: {error.strerror}{more}", remedy)


def check_room(folder: Path, *, needed_bytes: int, files: int) -> None:
    """Compare what a checkpoint needs with what its file system has; quotas are not seen.

    Raises:
        OSError: too few bytes or inodes are free, as the file system would say itself.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        problem = f"a checkpoint has {needed_bytes:_} bytes, but {free_bytes:_} are free"
        raise OSError(errno.ENOSPC, problem)
    inodes = os.statvfs(folder)
    if inodes.f_files and files > inodes.f_favail:  # some file systems do not count them
        problem = f"a checkpoint has {files} files, but {inodes.f_favail} inodes are free"
        raise OSError(errno.ENOSPC, problem)


def write_synced(file: Path, text: str) -> None:
    """Write a small file that survives a power cut."""
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
