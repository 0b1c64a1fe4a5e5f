"""What files hash to, remembered between commands: a corpus is not read whole at each start."""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from components.data.files import BLOCK_BYTES

FILE_NAME = "hashes.jsonl"
# A file that was changed just now may change again without a new time: clocks are coarse, and
# a file system on the network may tell of a change late.
SETTLED_SECONDS = 60.0

HashFile = Callable[[Path, int, int | None], str]
State = tuple[int, int, int, int]


def hash_file(path: Path, start: int = 0, end: int | None = None) -> str:
    """Hash the bytes from ``start`` up to ``end``, or to the end of the file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        left = None if end is None else end - start
        while left is None or left > 0:
            block = file.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES))
            if not block:
                break
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


class HashCache:
    """Hashes that were found before, in lines of JSON; nothing is ever changed in the file.

    A hash counts while size, times (of the content, and of the entry in the file system, which
    no program can set back) and inode of its file are what they were.
    """

    def __init__(self, *, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._known = dict(_read(path))

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
        """Hash as :func:`hash_file` does, or know the hash."""
        key, state = (str(path.absolute()), start, end), _state(path)
        known, sha256 = self._known.get(key, (None, ""))
        if known == state:
            return sha256
        sha256 = hash_file(path, start, end)
        settled = self._now() - max(state[1], state[2]) / 1e9 > SETTLED_SECONDS
        if settled and _state(path) == state:
            self._known[key] = state, sha256
            self._append({"file": key, "state": state, "sha256": sha256})
        return sha256

    def _append(self, entry: object) -> None:
        with suppress(OSError):  # who may not write there reads the files each time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(entry) + "\n").encode())


def _state(path: Path) -> State:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _read(path: Path) -> list[tuple[tuple[str, int, int | None], tuple[State, str]]]:
    """Read what is whole; the last line of a command that was killed may be a part of one."""
    found = []
    with suppress(OSError):  # not there, or not for this user to read
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError):  # half a line, or no entry
                entry = json.loads(line)
                name, start, end = entry["file"]
                size, changed, moved, inode = entry["state"]
                state = (size, changed, moved, inode)
                found.append(((name, start, end), (state, entry["sha256"])))
    return found
