"""Files that are whole or absent, and records that tell untouched files from edited."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from components.errors import RecipeError

REBUILD = "delete its folder and run action=prepare again"
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """Identify the content of one file; ``name`` is relative to its folder."""

    name: str
    sha256: str
    bytes: int


def read_blocks(path: Path) -> Iterator[bytes]:
    """Read a file of any size in blocks of bounded memory."""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def record_file(path: Path) -> FileRecord:
    """Hash a file that is there."""
    digest = hashlib.sha256()
    for block in read_blocks(path):
        digest.update(block)
    return FileRecord(name=path.name, sha256=digest.hexdigest(), bytes=path.stat().st_size)


def verify_file(folder: Path, record: FileRecord, *, contents: bool) -> None:
    """Compare a file with its record: always its size, its hash only with ``contents``.

    Raises:
        RecipeError: the file is missing, shorter or longer than recorded, or edited.
    """
    path = folder / record.name
    if not path.is_file():
        raise RecipeError(str(path), "is missing, but the manifest lists it", REBUILD)
    found_bytes = path.stat().st_size
    if found_bytes != record.bytes:
        word = "truncated" if found_bytes < record.bytes else "longer than written"
        raise RecipeError(
            str(path),
            f"is {word}: {found_bytes:,} bytes, the manifest says {record.bytes:,}",
            REBUILD,
        )
    if contents and record_file(path).sha256 != record.sha256:
        raise RecipeError(str(path), "was edited: its sha256 is not the manifest's", REBUILD)


def check_regular(path: Path, where: str) -> None:
    """Refuse a pipe or a device before it is opened, for it may never begin or never end.

    Raises:
        RecipeError: ``path`` is there, and no file of bytes.
    """
    if path.exists() and not path.is_file():
        said = "is" if where == str(path) else f"{path} is"
        raise RecipeError(where, f"{said} no regular file", "name a file")


@contextmanager
def replace_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place once it is complete and on disk.

    Raises:
        RecipeError: a folder, a pipe or a device is in that place, which stays.
    """
    check_regular(path, str(path))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb", buffering=BLOCK_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
