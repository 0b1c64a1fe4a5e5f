"""What files hash to, remembered between commands: a corpus is not read whole at each start."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.data.files import BLOCK_BYTES

FILE_NAME = "hashes.jsonl"
# A file that was changed just now may change again without a new time: clocks are coarse, and
# a file system on the network may tell of a change late.
SETTLED_SECONDS = 60.0

State = tuple[int, int, int, int]
Key = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class TextHash:
    """The hash of a text, and how long it is."""

    sha256: str
    bytes: int


class HashFile:
    """Hash files, and what is drawn from them, anew each time."""

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
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

    def drawn(self, origin: str, draw: Callable[[], TextHash]) -> TextHash:
        """Hash a text that costs more to draw than to hash.

        ``origin`` stands for all that decides it: the hash of what it is drawn from, and of
        the code that draws.
        """
        return draw()


hash_file = HashFile()


class HashCache(HashFile):
    """Hashes that were found before, in lines of JSON; nothing is ever changed in the file.

    A hash counts while size, times (of the content, and of the entry in the file system, which
    no program can set back) and inode of its file are what they were.
    """

    def __init__(self, *, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._known: dict[Key, tuple[State, str]] = {}
        self._drawn: dict[str, TextHash] = {}
        for entry in _read(path):
            with suppress(ValueError, TypeError, KeyError):  # half a line, or no entry
                self._remember(entry)

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
        """Hash as :func:`hash_file` does, or know the hash."""
        key, state = (str(path.absolute()), start, end), _state(path)
        known, sha256 = self._known.get(key, (None, ""))
        if known == state:
            return sha256
        sha256 = hash_file(path, start, end)
        settled = self._now() - max(state[1], state[2]) / 1e9 > SETTLED_SECONDS
        if settled and _state(path) == state:
            self._append({"file": key, "state": state, "sha256": sha256})
        return sha256

    def drawn(self, origin: str, draw: Callable[[], TextHash]) -> TextHash:
        """Draw and hash as :class:`HashFile` does, or know the hash."""
        if origin not in self._drawn:
            self._append({"drawn": origin, **asdict(draw())})
        return self._drawn[origin]

    def _remember(self, entry: Mapping[str, Any]) -> None:
        """Take one entry up.

        Raises:
            KeyError, TypeError or ValueError: it is none.
        """
        if "drawn" in entry:
            found = TextHash(sha256=entry["sha256"], bytes=entry["bytes"])
            self._drawn[entry["drawn"]] = found
        else:
            name, start, end = entry["file"]
            size, changed, moved, inode = entry["state"]
            self._known[name, start, end] = (size, changed, moved, inode), entry["sha256"]

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._remember(entry)
        with suppress(OSError):  # who may not write there reads the files each time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(entry) + "\n").encode())


def _state(path: Path) -> State:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _read(path: Path) -> Iterator[Any]:
    """Read what is whole; the last line of a command that was killed may be a part of one."""
    with suppress(OSError):  # not there, or not for this user to read
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                yield json.loads(line)
