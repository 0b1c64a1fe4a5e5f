"""Links in a run folder: one that leads out of it makes others' files part of the run."""

import os
from collections.abc import Iterator
from pathlib import Path

from components.errors import RecipeError

_WAY = "remove the link, or put what it leads to in its place"


def check_links(run: Path, key: str) -> None:
    """Refuse a run folder in which a link leads out of it, or something waits to be opened.

    The folder itself may be reached through a link, and links that stay inside are a run's own.

    Raises:
        RecipeError: the first such link, for who follows it reads, appends to or removes what
            does not belong to the run; a file to append to that has another name, too; or a
            pipe, a socket or a device.
    """
    inside = Path(os.path.realpath(run))
    for file in inside.glob("*.jsonl"):
        if file.lstat().st_nlink > 1 and not file.is_symlink():
            problem = f"{run / file.name} is the file of another name, too (a hard link)"
            raise RecipeError(key, problem, "copy the folder without links: cp -r")
    for entry in _entries(inside):
        shown = run / Path(entry.path).relative_to(inside)
        if not entry.is_symlink():
            raise RecipeError(key, f"{shown} is neither a file nor a folder", "remove it")
        target = Path(os.path.realpath(entry.path))
        if not target.is_relative_to(inside):
            problem = f"{shown} is a link that leads out of the run, to {target}"
            raise RecipeError(key, problem, _WAY)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is neither a file nor a folder; what may not be read is left to its reader."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield entry
