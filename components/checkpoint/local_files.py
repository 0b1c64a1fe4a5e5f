"""Files of local checkpoints: one rank's state in a node's memory or on its disk.

Three parts: the SHA-256 of what follows, a line of JSON, the bytes of all tensors one after
another. No pickle: others may write below ``/dev/shm``. Which tensors they are follows from
``key``, by which a rank knows what it wrote itself in the same run and layout.
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
_LONGEST_LINE = 1 << 24  # bytes: the guard's history is in it
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Generation(NamedTuple):
    """One local checkpoint of all ranks; ``attempt`` tells apart what was computed again."""

    tokens: int
    attempt: str


@dataclass(frozen=True, kw_only=True)
class Header:
    """Whose state a file has, and of when."""

    key: str
    rank: int
    attempt: str
    progress: RunProgress

    @property
    def generation(self) -> Generation:
        return Generation(self.progress.tokens, self.attempt)


@dataclass(frozen=True)
class StateFile:
    """A file whose digest was right when it was looked at; its bytes begin at ``begin``."""

    path: Path
    header: Header
    begin: int

    def read(self, target: Tensor) -> None:
        """Fill bytes, all of them."""
        with self.path.open("rb", buffering=0) as stream:
            stream.seek(self.begin)
            view = target.numpy().data
            while view and (got := stream.readinto(view)):
                view = view[got:]
        if view:
            raise EOFError(f"{self.path} was cut short after it had been checked")


def write_state(folder: Path, header: Header, state: Tensor) -> Path:
    """Write bytes beside and rename; of a process that is killed nothing or all is there.

    Nothing is synced: memory outlives the process, and a node that is lost is lost.
    """
    line = json.dumps(asdict(header)).encode() + b"\n"
    digest = hashlib.sha256(line)
    digest.update(state.numpy().data)
    name = f"rank-{header.rank:05d}-{header.progress.tokens:015d}-{header.attempt}.state"
    beside = folder / f".{name}"
    with beside.open("wb", buffering=0) as stream:
        for part in (digest.hexdigest().encode() + b"\n", line, state.numpy().data):
            view = memoryview(part)
            while view:  # the kernel takes 2 GiB at most
                view = view[stream.write(view) :]
    return beside.replace(folder / name)


def files_in(folder: Path, place: int, per_node: int) -> dict[Path, Generation]:
    """List what was written, or begun, of the ranks at this place of their nodes."""
    found = {}
    for path in sorted(folder.glob("*")):
        if (name := _NAME.fullmatch(path.name)) and int(name["rank"]) % per_node == place:
            found[path] = Generation(int(name["tokens"]), name["attempt"])
    return found


def whole_states(paths: Iterable[Path], keys: Mapping[int, str]) -> Iterator[StateFile]:
    """Find the files that are whole and have the keys of their ranks; pass over any other."""
    for path in paths:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = None if path.name.startswith(".") else _looked_at(path)
            if found and keys.get(found.header.rank) == found.header.key:
                yield found


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
    """Make folders of the user's alone below ``folder``, and return the last one.

    Raises:
        RecipeError: one cannot be made, is somebody else's, or others may write into it.
    """
    way = "name another folder, or none"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in below:
            folder = folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()  # who made a link here could lead us anywhere
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise RecipeError(KEY, f"{folder} belongs to another user", way)
            if found.st_mode & _OTHERS_WRITE:
                raise RecipeError(KEY, f"others may write into {folder}", f"remove it, {way}")
    except OSError as error:
        problem = f"cannot make {folder}: {error.strerror}"
        raise RecipeError(KEY, problem, way) from error
    return folder
