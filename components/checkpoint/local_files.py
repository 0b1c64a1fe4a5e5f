"""Files of local checkpoints: one rank's state in a node's memory or on its disk.

A file contains the SHA-256 of the rest, a line of JSON (the header), and the bytes of all
tensors. It contains no pickle, since other users may write to ``/dev/shm``. The header's
``key`` identifies run, rank, layout and tensors: files with other keys are not read.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from components.checkpoint.metadata import RunProgress
from components.errors import RecipeError

KEY = "checkpoint.local.folder"
_NAME = re.compile(r"\.?rank-(?P<rank>\d{5})-(?P<tokens>\d{15})-(?P<attempt>\w+)\.state")
_LONGEST_LINE = 1 << 24  # bytes, including the guard's history
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Generation(NamedTuple):
    """One local checkpoint of all ranks. ``attempt`` distinguishes repeated computations."""

    tokens: int
    attempt: str


@dataclass(frozen=True, kw_only=True)
class Header:
    """Header of a state file: the rank, the attempt and the progress."""

    key: str
    rank: int
    attempt: str
    progress: RunProgress


@dataclass(frozen=True)
class StateFile:
    """State file with a verified digest. The tensors' bytes start at ``begin``."""

    path: Path
    header: Header
    begin: int

    def read_into(self, target: Tensor) -> None:
        """Read the state into ``target``; EOFError if the file is shorter."""
        with self.path.open("rb") as stream:
            stream.seek(self.begin)
            length = stream.readinto(target.numpy().data)
        if length < len(target):
            raise EOFError(f"{self.path} was truncated after it was verified")


def write_state(folder: Path, header: Header, state: Tensor) -> Path:
    """Write a state file atomically, but unsynced: a lost node's files are lost anyway."""
    line = json.dumps(asdict(header)).encode() + b"\n"
    digest = hashlib.sha256(line)
    digest.update(state.numpy().data)
    name = f"rank-{header.rank:05d}-{header.progress.tokens:015d}-{header.attempt}.state"
    temporary = folder / f".{name}"
    with temporary.open("wb") as stream:
        stream.writelines((digest.hexdigest().encode() + b"\n", line, state.numpy().data))
    return temporary.replace(folder / name)


def files_in(folder: Path, place: int, per_node: int) -> dict[Path, Generation]:
    """List complete and temporary files of the ranks with local rank ``place``."""
    generations = {}
    for path in sorted(folder.glob("*")):
        if (name := _NAME.fullmatch(path.name)) and int(name["rank"]) % per_node == place:
            generations[path] = Generation(int(name["tokens"]), name["attempt"])
    return generations


def whole_states(paths: Iterable[Path], keys: Mapping[int, str]) -> Iterator[StateFile]:
    """Yield the undamaged files that have their rank's key. Skip all other files."""
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = None if path.name.startswith(".") else _looked_at(path)
            if state and keys.get(state.header.rank) == state.header.key:
                yield state


def _looked_at(path: Path) -> StateFile | None:
    with path.open("rb") as stream:
        written = stream.readline(65).decode().strip()
        begin = stream.tell()
        if hashlib.file_digest(stream, "sha256").hexdigest() != written:
            return None
        stream.seek(begin)
        tree = json.loads(stream.readline(_LONGEST_LINE))
        progress = RunProgress(**tree.pop("progress"))
        return StateFile(path, Header(progress=progress, **tree), stream.tell())


def own_folder(folder: Path, *below: str) -> Path:
    """Create nested folders below ``folder`` that only the user may write to; return the last.

    Raises RecipeError if a folder cannot be created, has another owner, or others can write.
    """
    remedy = "set another folder, or none"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in below:
            folder = folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()  # `lstat`: do not follow another user's link
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                raise RecipeError(KEY, f"{folder} belongs to another user", remedy)
            if status.st_mode & _OTHERS_WRITE:
                raise RecipeError(
                    KEY, f"other users can write to {folder}", f"remove it, {remedy}"
                )
    except OSError as error:
        problem = f"cannot create {folder}: {error.strerror}"
        raise RecipeError(KEY, problem, remedy) from error
    return folder
