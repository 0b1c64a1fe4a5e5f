"""Files that are whole or absent, their records, and hashes remembered between commands."""

import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from components.errors import RecipeError
from components.ranges import Tokens

REBUILD = "delete its folder and run action=prepare again"
BLOCK_BYTES = 1 << 20
HASHES = "hashes.jsonl"
MOST_NAME_BYTES = 200  # of a temporary file; file systems allow 255 with what is added
HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"  # in names of temporary files
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # in the texts of Rust's errors
# A file that was changed just now may change again without a new time: clocks are coarse, and
# a file system on the network may tell of a change late.
SETTLED_SECONDS = 60.0

FileState = tuple[int, int, int, int]
TextHash = tuple[str, int]  # SHA-256, and how many bytes were hashed


@dataclass(frozen=True)
class FileRecord:
    """Identify the content of one file; ``name`` is relative to its folder."""

    name: str
    sha256: str
    bytes: Tokens


def read_blocks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Read the bytes from ``start`` up to ``end``, or to the file's end, in bounded memory."""
    left = sys.maxsize if end is None else end - start
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            yield block
            left -= len(block)


def record_file(path: Path) -> FileRecord:
    """Hash a file that is there."""
    return FileRecord(name=path.name, sha256=hash_file(path), bytes=path.stat().st_size)


def verify_file(folder: Path, record: FileRecord, *, contents: bool) -> None:
    """Compare a file with its record: always its size, its hash only with ``contents``.

    Raises:
        RecipeError: the file is missing, shorter or longer than recorded, or edited; or it is
            a link that leads out of the folder.
    """
    path = folder / record.name
    is_inside = Path(record.name).is_absolute() or not path.is_symlink()
    if not is_inside and not path.resolve().is_relative_to(folder.resolve()):
        raise RecipeError(str(path), "is a link that leads out of its folder", REBUILD)
    if not path.is_file():
        raise RecipeError(str(path), "is missing, but the manifest lists it", REBUILD)
    found_bytes = path.stat().st_size
    if found_bytes != record.bytes:
        word = "truncated" if found_bytes < record.bytes else "longer than written"
        problem = f"is {word}: {found_bytes:,} bytes, the manifest says {record.bytes:,}"
        raise RecipeError(str(path), problem, REBUILD)
    if contents and record_file(path).sha256 != record.sha256:
        raise RecipeError(str(path), "was edited: its sha256 is not the manifest's", REBUILD)


def check_regular(path: Path, where: str) -> None:
    """Raise a RecipeError for a pipe, a device or a folder: reading it may never end."""
    if path.exists() and not path.is_file():
        subject = "" if where == str(path) else f"{path} "
        raise RecipeError(where, f"{subject}is no regular file", "name a file")


@contextmanager
def writing(path: Path, *, suffix: str = "", is_folder: bool = False) -> Iterator[Path]:
    """Create a hidden file or folder next to ``path`` to be renamed; remove it at the end.

    System errors name ``path``. Libraries in Rust put them into the text of their own error.
    The hidden place is locked while it is in use. A killed process leaves it without a lock,
    and the next process on this host that writes ``path`` removes it.
    """
    name = os.fsencode(path.name.removesuffix(suffix))[:MOST_NAME_BYTES].decode(errors="ignore")
    stem, numbers = f".{name}.{HOST}", itertools.count()
    partial, descriptor = path.with_name(f"{stem}.partial{suffix}"), None
    try:
        while descriptor is None:
            partial = path.with_name(f"{stem}-{next(numbers)}.partial{suffix}")
            descriptor = _create(partial, is_folder=is_folder)
        yield partial
    except OSError as error:
        # A copy that fails names its source first, and where it should have gone second.
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if names and not any(name.startswith(str(partial)) for name in names):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except Exception as error:
        if (match := SYSTEM_ERROR.search(str(error))) is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        if descriptor is None:  # a signal came while it was created
            _clear(partial)
        else:
            try:
                _remove(partial, descriptor)
            except KeyboardInterrupt:  # a signal: no half-written file may stay
                _remove(partial, descriptor)
                raise
            finally:
                os.close(descriptor)


def _create(partial: Path, *, is_folder: bool) -> int | None:
    """Create and lock a file or folder; None if another process was first."""
    if os.path.lexists(partial):
        _clear(partial)
        return None
    kind, descriptor = os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT | os.O_EXCL, -1
    try:
        if is_folder:
            partial.mkdir()
        descriptor = os.open(partial, kind, 0o666)
        is_ours = _lock(partial, descriptor, lockless=True)
    except FileExistsError:
        return None
    except BaseException:  # a signal: the lock must not outlive this call
        if descriptor >= 0:
            os.close(descriptor)
        raise
    if is_ours:
        return descriptor
    os.close(descriptor)
    return None


def _clear(partial: Path) -> None:
    """Remove what an ended process left, which nobody has locked."""
    with suppress(OSError):  # NFS locks only files that are open for writing
        kind = os.O_RDONLY if partial.is_dir() else os.O_RDWR
        descriptor = os.open(partial, kind | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _lock(partial, descriptor, lockless=False):
                _remove(partial, descriptor)
        finally:
            os.close(descriptor)


def _lock(partial: Path, descriptor: int, *, lockless: bool) -> bool:
    """Lock an open file or folder; false if it is locked, or has lost its name.

    ``lockless`` is returned where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), partial.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return lockless


def _remove(partial: Path, descriptor: int) -> None:
    """Remove an open file or folder, unless its name belongs to another by now."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), partial.lstat()):
            shutil.rmtree(partial, ignore_errors=True)  # of a file this does nothing
            partial.unlink()


@contextmanager
def parents_of(path: Path) -> Iterator[None]:
    """Make the missing folders above ``path``; remove those that are empty at the end."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()


@contextmanager
def complete_or_removed(folder: Path) -> Iterator[None]:
    """Remove the new folder if the block fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``path`` if the block succeeds."""
    with parents_of(path), writing(path, is_folder=True) as partial:
        yield partial
        sync_folder(partial)
        partial.rename(path)
    sync_folder(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file that is whole or absent; see :func:`replace_atomically`."""
    with replace_atomically(path) as file:
        file.write(text.encode())


@contextmanager
def replace_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file; rename it to ``path`` once it is complete and on disk.

    Raises:
        RecipeError: ``path`` is a folder, a pipe or a device.
    """
    check_regular(path, str(path))
    with writing(path) as partial:
        with partial.open("wb", buffering=BLOCK_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    sync_folder(path.parent)


@contextmanager
def create_atomically(path: Path, content: bytes) -> Iterator[Path]:
    """Write a temporary file and yield it; link it to ``path`` if the block succeeds.

    Raises:
        FileExistsError: ``path`` exists.
    """
    with writing(path, suffix=path.suffix) as partial:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield partial
        path.hardlink_to(partial)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HashFile:
    """Hash files, and what is drawn from them, anew each time."""

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
        """Hash the bytes from ``start`` up to ``end``, or to the end of the file."""
        digest = hashlib.sha256()
        for block in read_blocks(path, start, end):
            digest.update(block)
        return digest.hexdigest()

    def drawn(self, origin: str, draw: Callable[[], TextHash]) -> TextHash:
        """Hash a drawn text; ``origin`` is the hash of all that decides it, with the code."""
        return draw()


hash_file = HashFile()


class HashCache(HashFile):
    """Hashes that were found before, in lines of JSON; nothing is ever changed in the file.

    A hash counts while size, times (of the content, and of the entry in the file system, which
    no program can set back) and inode of its file are what they were.
    """

    def __init__(self, *, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._known: dict[tuple[str, int, int | None], tuple[FileState, str]] = {}
        self._drawn: dict[str, TextHash] = {}
        with suppress(OSError):  # not there, or not for this user to read
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, TypeError, KeyError, RecursionError):  # no entry
                    self._remember(json.loads(line))

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
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
        if origin not in self._drawn:
            sha256, size = draw()
            self._append({"drawn": origin, "sha256": sha256, "bytes": size})
        return self._drawn[origin]

    def _remember(self, entry: Mapping[str, Any]) -> None:
        if "drawn" in entry:
            self._drawn[entry["drawn"]] = entry["sha256"], entry["bytes"]
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


def _state(path: Path) -> FileState:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
