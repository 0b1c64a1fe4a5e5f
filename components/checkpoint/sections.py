"""Sections of a checkpoint's files: one rank writes and hashes each, one rank checks each.

A rank hashes what it has in memory while the same bytes go to the disk, so that a digest is of
what should be there.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

from components.checkpoint.metadata import Files, FileSection, damaged
from components.errors import RecipeError
from components.run.disk import Patience

Blocks = Sequence[tuple[int, memoryview]]
Written = tuple[str, int, FileSection]  # the file, and where in it
_READ_BYTES = 1 << 22  # at a time


def write_blocks(file: Path, blocks: Blocks, patience: Patience) -> list[Written]:
    """Write bytes at their places of a file, which other ranks write too, down to the disk.

    Raises:
        RecipeError: the file cannot be written, and why.
    """
    if not blocks:
        return []
    with ThreadPoolExecutor(max_workers=1) as hashing:  # neither holds the interpreter's lock
        sections = hashing.submit(_hash, file.name, blocks)
        patience(file, lambda: _write(file, blocks))
        return sections.result()


def _write(file: Path, blocks: Blocks) -> None:
    number = os.open(file, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for begin, block in blocks:
            done = 0
            while done < len(block):  # the kernel takes 2 GiB at most
                done += os.pwrite(number, block[done:], begin + done)
        os.fsync(number)
    finally:
        os.close(number)


def _hash(name: str, blocks: Blocks) -> list[Written]:
    """Hash each run of blocks that follow one another without a gap."""
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
    """Sort all ranks' sections into the files that they make up."""
    files: dict[str, tuple[FileSection, ...]] = {}
    for name, _, section in sorted(written):
        files[name] = (*files.get(name, ()), section)
    return files


def check_names(folder: Path, files: Files) -> None:
    """Compare what is in a folder with what all ranks say they wrote into it.

    Raises:
        RecipeError: ranks wrote to other folders of the same name, or others wrote to this one.
    """
    found = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    for name, sections in sorted(files.items()):
        if found.pop(name, None) != sum(one.length for one in sections):
            problem = "was written by a rank, but rank 0 does not see it, or not all of it"
            remedy = "put the run on a file system that all nodes share"
            raise RecipeError(str(folder / name), problem, remedy)
    for name in sorted(found):
        raise RecipeError(str(folder / name), "was written by no rank", "move it elsewhere")


def check_sections(checkpoint: Path, files: Files, *, rank: int, ranks: int) -> None:
    """Check one rank's share of the bytes, and as rank 0 that the files are there and whole.

    Raises:
        DamagedCheckpointError: a file is missing or cut short, or not what was written.
        RecipeError: a file is there that is none of the checkpoint's.
    """
    if rank == 0:
        _check_sizes(checkpoint, files)
    places = []
    for name, sections in sorted(files.items()):
        ends = accumulate(section.length for section in sections)
        places += [(name, end, section) for end, section in zip(ends, sections, strict=True)]
    for name, end, (length, sha256) in places[rank::ranks]:
        if _digest(checkpoint / name, end - length, length) != sha256:
            raise damaged(checkpoint / name, "was changed after it was written")


def _check_sizes(checkpoint: Path, files: Files) -> None:
    for file in sorted(checkpoint.glob("*.safetensors")):
        if file.name not in files:
            problem, remedy = "was not written with this checkpoint", "move it elsewhere"
            raise RecipeError(str(file), problem, remedy)
    for name, sections in sorted(files.items()):
        file = checkpoint / name
        if not file.is_file():
            raise damaged(file, "is missing")
        expected, size = sum(one.length for one in sections), file.stat().st_size
        if size != expected:
            raise damaged(file, f"has {size} bytes, {expected} were written")


def _digest(file: Path, begin: int, length: int) -> str:
    digest, left, buffer = hashlib.sha256(), length, memoryview(bytearray(_READ_BYTES))
    try:
        with file.open("rb", buffering=0) as stream:
            stream.seek(begin)
            while left and (got := stream.readinto(buffer[:left])):
                digest.update(buffer[:got])
                left -= got
    except OSError as error:
        raise damaged(file, f"cannot be read: {error.strerror}") from error
    return digest.hexdigest()
