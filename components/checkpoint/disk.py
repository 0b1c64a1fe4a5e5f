"""File systems that fill up, forbid, or go away for a while: what to wait for, what to say."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from components.errors import RecipeError

T = TypeVar("T")

# What Lustre, GPFS and NFS answer while a server is away; a missing folder is ENOENT where the
# mount itself is gone. What a user has to mend (space, quota, permission) is not waited for.
GONE = {
    *(errno.ENOENT, errno.EIO, errno.ESTALE, errno.ENOTCONN),
    *(errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ESHUTDOWN),
}
PAUSE_SECONDS = 0.5
REMEDIES = {
    errno.ENOENT: "put the run on a file system that is there and that all nodes share",
    errno.ENOSPC: "make room or lower checkpoint.keep",
    errno.EDQUOT: "make room in your quota or lower checkpoint.keep",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f) or checkpoint.files",
    errno.EROFS: "put the run on a file system that can be written",
    errno.EACCES: "make the folder writable for you",
    errno.EPERM: "make the folder writable for you",
}
RESUME = "then resume the run: the checkpoint before is whole"


def patiently(path: Path, task: Callable[[], T], *, seconds: float) -> T:
    """Do ``task``, again and again for so long while the file system is away.

    The task has to be one that can be done twice.

    Raises:
        RecipeError: ``path`` cannot be written, and why.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return task()
        except OSError as error:
            if error.errno not in GONE or time.monotonic() >= end:
                raise _cannot_be_written(path, error) from error
            time.sleep(PAUSE_SECONDS)


def _cannot_be_written(path: Path, error: OSError) -> RecipeError:
    remedy = REMEDIES.get(error.errno or 0, "mend the file system")
    return RecipeError(str(path), f"cannot be written: {error.strerror}", f"{remedy}, {RESUME}")


def check_room(folder: Path, *, needed_bytes: int, files: int) -> None:
    """Compare what a checkpoint needs with what its file system has; quotas are not seen.

    Raises:
        RecipeError: too few bytes or inodes are free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        problem = f"a checkpoint has {needed_bytes:_} bytes, but {free_bytes:_} are free"
        remedy = f"{REMEDIES[errno.ENOSPC]}, {RESUME}"
        raise RecipeError(str(folder), problem, remedy)
    inodes = os.statvfs(folder)
    if inodes.f_files and files > inodes.f_favail:  # some file systems do not count them
        problem = f"a checkpoint has {files} files, but {inodes.f_favail} inodes are free"
        remedy = f"remove files or lower checkpoint.files, {RESUME}"
        raise RecipeError(str(folder), problem, remedy)


def write_synced(file: Path, text: str) -> None:
    """Write a small file that survives a power cut."""
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
