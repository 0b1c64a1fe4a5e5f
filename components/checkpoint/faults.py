"""What goes wrong with checkpoints on real machines, done on purpose to see a run survive."""

import resource
import threading
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


def take_away(folder: Path, seconds: float) -> threading.Timer:
    """Let a folder be gone for so long, as when its file system is; join what is returned."""
    hidden = folder.with_name(f".{folder.name}-taken-away")
    folder.rename(hidden)
    back = threading.Timer(seconds, hidden.rename, (folder,))
    back.start()
    return back
