"""Sections of a checkpoint's files: one rank writes and hashes each, one rank verifies each.

A rank hashes the bytes in its memory, so the digest is correct even if the write is not.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

from components.checkpoint.metadata import Files, FileSection, make_damage_error
from components.data.files import hash_file
from components.errors import RecipeError
from components.run.disk import Patience

FileBlocks = Sequence[tuple[int, memoryview]]
Written = tuple[str, int, FileSection]  # the file's name, the start in the file, the section


def write_blocks(file: Path, blocks: FileBlocks, patience: Patience) -> list[Written]:
    """Write and sync blocks at their positions in a file that other ranks also write to."""
    if not blocks:
        return []
    with ThreadPoolExecutor(max_workers=1) as hashing:  # both release the GIL
        sections = hashing.submit(_hash, file.name, blocks)
        patience(file, lambda: _write(file, blocks))
        return sections.result()


def _write(file: Path, blocks: FileBlocks) -> None:
    number = os.open(file, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for begin, block in blocks:
            done = 0
            while done < len(block):  # the kernel takes 2 GiB at most
                done += os.pwrite(number, block[done:], begin + done)
        os.fsync(number)
    finally:
        os.close(number)


def _hash(name: str, blocks: FileBlocks) -> list[Written]:
    """Hash each run of contiguous blocks."""
    written: list[Written] = []
    start, end, digest = blocks[0][0], blocks[0][0], hashlib.sha256()
    for begin, block in [*blocks, (-1, memoryview(b""))]:
        if begin != end:
            section = FileSection(end - start, digest.hexdigest())
            written.append((name, start, section))
            start, digest = begin, hashlib.sha256()
        digest.update(block)
        end = begin + len(block)
    return written


def files_of(written: Sequence[Written]) -> Files:
    """Group the sections of all ranks by file."""
    files: dict[str, tuple[FileSection, ...]] = {}
    for name, _, section in sorted(written):
        files[name] = (*files.get(name, ()), section)
    return files


def check_names(folder: Path, files: Files) -> None:
    """Compare the files in a folder, and their sizes, with the sections that all ranks wrote.

    Raises RecipeError if a file is missing or incomplete (the nodes do not share the folder),
    or if the folder contains another file.
    """
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    for name, sections in sorted(files.items()):
        if sizes.pop(name, None) != sum(section.length for section in sections):
            problem = "was written by another rank, but rank 0 cannot see all of it"
            remedy = "put the run on a file system that all nodes share"
            raise RecipeError(str(folder / name), problem, remedy)
    for name in sorted(sizes):
        raise RecipeError(str(folder / name), "was not written by any rank", "move the file")


def check_sections(checkpoint: Path, files: Files, *, rank: int, ranks: int) -> None:
    """Verify one rank's share of the bytes. Rank 0 also checks the names and sizes of files.

    Raises DamagedCheckpointError for a missing, truncated or changed file, RecipeError for an
    extra file.
    """
    if rank == 0:
        _check_sizes(checkpoint, files)
    places = []
    for name, sections in sorted(files.items()):
        ends = accumulate(section.length for section in sections)
        places += [(name, end, section) for end, section in zip(ends, sections, strict=True)]
    for name, end, (length, sha256) in places[rank::ranks]:
        if _digest(checkpoint / name, end - length, length) != sha256:
            raise make_damage_error(checkpoint / name, "was changed after it was written")


def _check_sizes(checkpoint: Path, files: Files) -> None:
    for file in sorted(checkpoint.glob("*.safetensors")):
        if file.name not in files:
            problem, remedy = "is not part of this checkpoint", "move the file elsewhere"
            raise RecipeError(str(file), problem, remedy)
    for name, sections in sorted(files.items()):
        file = checkpoint / name
        if not file.is_file():
            raise make_damage_error(file, "is missing")
        expected, size = sum(section.length for section in sections), file.stat().st_size
        if size != expected:
            raise make_damage_error(file, f"has {size} bytes, {expected} were written")


def _digest(file: Path, begin: int, length: int) -> str:
    try:
        return hash_file(file, begin, begin + length)
    except OSError as error:
        raise make_damage_error(file, f"cannot be read: {error.strerror}") from error
