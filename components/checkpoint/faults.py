"""What goes wrong with checkpoints on real machines, done on purpose to see a run survive."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.checkpoint.marker import newest_checkpoint
from components.errors import RecipeError


def truncate_newest(folder: Path) -> Path:
    """Cut the newest checkpoint's last file in half, and return that file.

    Raises:
        RecipeError: there is no checkpoint.
    """
    newest = newest_checkpoint(folder)
    if newest is None:
        problem = "has no checkpoint to damage"
        raise RecipeError(str(folder), problem, "inject the fault after the first one")
    *_, file = sorted(newest.glob("*.safetensors"))
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)
    return file


@contextmanager
def fill_up(most_bytes: int) -> Iterator[None]:
    """Let this process write no file beyond so many bytes, as where a quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def take_away(folder: Path, seconds: float) -> None:
    """Let a folder be gone for so long, as when its file system is.

    Another process puts it back, which outlives this one as a server does: a shell in the
    background of a shell, so that nobody here waits for it.
    """
    hidden = folder.with_name(f".{folder.name}-taken-away")
    folder.rename(hidden)
    put_back = '(sleep "$1"; mv -T "$2" "$3") >/dev/null 2>&1 </dev/null &'
    words = ["sh", "-c", put_back, "sh", f"{seconds}", str(hidden), str(folder)]
    subprocess.run(words, check=True, start_new_session=True)
