"""Atomic writes of files and folders, file records, and a cache of file hashes."""

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
MOST_NAME_BYTES = 200  # of a temporary file's stem; file systems allow 255 bytes in total
HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"  # in names of temporary files
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # in messages of Rust libraries
# A recently changed file may change again with the same time stamp: clocks are coarse, and a
# network file system may report a change late.
STABLE_SECONDS = 60.0

FileState = tuple[int, int, int, int]
TextHash = tuple[str, int]  # SHA-256, number of hashed bytes


@dataclass(frozen=True)
class FileRecord:
    """Record of one file's content; ``name`` is relative to its folder."""

    name: str
    sha256: str
    bytes: Tokens


def read_blocks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes from ``start`` to ``end`` (default: end of file) in blocks."""
    left = sys.maxsize if end is None else end - start
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            yield block
            left -= len(block)


def record_file(path: Path) -> FileRecord:
    """Return the record of an existing file: its name, hash and size."""
    return FileRecord(name=path.name, sha256=hash_file(path), bytes=path.stat().st_size)


def verify_file(folder: Path, record: FileRecord, *, contents: bool) -> None:
    """Compare a file with its record: its size and, with ``contents``, its hash.

    A missing file, or a link out of the folder, is a RecipeError too.
    """
    path = folder / record.name
    is_inside = Path(record.name).is_absolute() or not path.is_symlink()
    if not is_inside and not path.resolve().is_relative_to(folder.resolve()):
        raise RecipeError(str(path), "is a link that leads out of its folder", REBUILD)
    if not path.is_file():
        raise RecipeError(str(path), "is missing, but the manifest lists it", REBUILD)
    num_bytes = path.stat().st_size
    if num_bytes != record.bytes:
        word = "truncated" if num_bytes < record.bytes else "longer than written"
        problem = f"is {word}: {num_bytes:,} bytes, the manifest says {record.bytes:,}"
        raise RecipeError(str(path), problem, REBUILD)
    if contents and record_file(path).sha256 != record.sha256:
        raise RecipeError(str(path), "was changed: its sha256 is not the manifest's", REBUILD)


def check_regular(path: Path, where: str) -> None:
    """Raise a RecipeError for a pipe, a device or a folder, because reading may never end."""
    if path.exists() and not path.is_file():
        subject = "" if where == str(path) else f"{path} "
        raise RecipeError(where, f"{subject}is not a regular file", "set it to a file")


@contextmanager
def create_temporary_path(
    path: Path, *, suffix: str = "", is_folder: bool = False
) -> Iterator[Path]:
    """Create a hidden temporary file or folder next to ``path``; remove it at the end.

    The caller renames it to ``path``. System errors name ``path``, also when a Rust library
    reports them only as text. The temporary path is locked while it is in use. A killed process
    leaves it unlocked, and the next process on this host that writes ``path`` removes it.
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
        # An error of a copy names the source first and the destination second.
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if names and not any(name.startswith(str(partial)) for name in names):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except Exception as error:  # libraries wrap system errors in types of their own
        if (match := SYSTEM_ERROR.search(str(error))) is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        if descriptor is None:  # a signal interrupted the creation
            _clear(partial)
        else:
            try:
                _remove(partial, descriptor)
            except KeyboardInterrupt:  # a signal: remove the half-written file
                _remove(partial, descriptor)
                raise
            finally:
                os.close(descriptor)


def _create(partial: Path, *, is_folder: bool) -> int | None:
    """Create and lock a file or folder; return None if another process was faster."""
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
    except BaseException:  # a signal: release the lock
        if descriptor >= 0:
            os.close(descriptor)
        raise
    if is_ours:
        return descriptor
    os.close(descriptor)
    return None


def _clear(partial: Path) -> None:
    """Remove the temporary path of an ended process, unless a process has locked it."""
    with suppress(OSError):  # NFS locks only files that are open for writing
        kind = os.O_RDONLY if partial.is_dir() else os.O_RDWR
        descriptor = os.open(partial, kind | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _lock(partial, descriptor, lockless=False):
                _remove(partial, descriptor)
        finally:
            os.close(descriptor)


def _lock(partial: Path, descriptor: int, *, lockless: bool) -> bool:
    """Lock an open file; False if locked or nameless, ``lockless`` if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), partial.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return lockless


def _remove(partial: Path, descriptor: int) -> None:
    """Remove an open file or folder, unless its name now belongs to another one."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), partial.lstat()):
            shutil.rmtree(partial, ignore_errors=True)  # no effect on a file
            partial.unlink()


@contextmanager
def parents_of(path: Path) -> Iterator[None]:
    """Create the missing parent folders of ``path``; at the end remove those that are empty."""
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
    """Remove ``folder`` if the block fails."""
    try:
        yield
    except BaseException:  # an interrupt must not leave half a folder
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to ``path`` if the block succeeds."""
    with parents_of(path), create_temporary_path(path, is_folder=True) as partial:
        yield partial
        sync_folder(partial)
        partial.rename(path)
    sync_folder(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file atomically; see :func:`replace_atomically`."""
    with replace_atomically(path) as file:
        file.write(text.encode())


@contextmanager
def replace_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file; rename it to ``path`` after it is complete and synced to disk."""
    check_regular(path, str(path))
    with create_temporary_path(path) as partial:
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
    with create_temporary_path(path, suffix=path.suffix) as partial:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield partial
        path.hardlink_to(partial)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync ``folder``, so that renames inside it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HashFile:
    """Hashes files and drawn texts, without a cache."""

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
        """Return the SHA-256 of the bytes from ``start`` to ``end`` (default: end of file)."""
        digest = hashlib.sha256()
        for block in read_blocks(path, start, end):
            digest.update(block)
        return digest.hexdigest()

    def hash_drawn_text(self, origin: str, draw: Callable[[], TextHash]) -> TextHash:
        """Hash a drawn text; ``origin`` is the hash of its inputs and of the drawing code."""
        return draw()


hash_file = HashFile()


class HashCache(HashFile):
    """Cache of hashes in a JSON lines file, to which entries are only appended.

    A file's hash is valid while its size, inode and times are unchanged: the time of the
    content, and the time of the inode, which no program can set back.
    """

    def __init__(self, *, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self._now = path, now
        self._known: dict[tuple[str, int, int | None], tuple[FileState, str]] = {}
        self._drawn: dict[str, TextHash] = {}
        with suppress(OSError):  # missing, or not readable for this user
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, TypeError, KeyError, RecursionError):  # a bad entry
                    self._remember(json.loads(line))

    def __call__(self, path: Path, start: int = 0, end: int | None = None) -> str:
        key, state = (str(path.absolute()), start, end), _state(path)
        known, sha256 = self._known.get(key, (None, ""))
        if known == state:
            return sha256
        sha256 = hash_file(path, start, end)
        is_stable = self._now() - max(state[1], state[2]) / 1e9 > STABLE_SECONDS
        if is_stable and _state(path) == state:
            self._append({"file": key, "state": state, "sha256": sha256})
        return sha256

    def hash_drawn_text(self, origin: str, draw: Callable[[], TextHash]) -> TextHash:
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
        with suppress(OSError):  # without write permission, later commands hash again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(entry) + "\n").encode())


def _state(path: Path) -> FileState:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
