"""What a pass does, as data: its settings, its tasks, and the hash of all that decides them.

The plan lies in the pass's folder as JSON; tasks on whatever machine read it from there.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.data.files import replace_atomically
from data_prep.formats import kind_of

FILE_NAME = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A file, a byte range of it, or without a path an embedded corpus or a dataset."""

    name: str
    path: str | None
    sha256: str
    bytes: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process works through at a time, in this order."""

    source: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pass over the corpus.

    ``work`` is the module that does a task; its ``VERSION`` counts changes of its results.
    """

    work: str
    version: int
    settings: Mapping[str, Any]
    tasks: tuple[Task, ...]

    @property
    def key(self) -> str:
        """Hash it; where the inputs lie makes no difference, what is in them does."""
        tree = {
            "work": self.work,
            "version": self.version,
            "settings": self.settings,
            "tasks": [[task.source, *map(_identity, task.pieces)] for task in self.tasks],
        }
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        return f"{self.work}-{self.key[:12]}"

    def write(self, folder: Path) -> None:
        """Write ``plan.json``, with the paths of today."""
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(json.dumps(asdict(self), indent=1, ensure_ascii=False).encode())


def read_plan(folder: Path) -> Plan:
    """Read what :meth:`Plan.write` wrote."""
    tree = json.loads((folder / FILE_NAME).read_bytes())
    tasks = tuple(
        Task(source=task["source"], pieces=tuple(Piece(**piece) for piece in task["pieces"]))
        for task in tree["tasks"]
    )
    return Plan(**{**tree, "tasks": tasks})


def _identity(piece: Piece) -> Sequence[Any]:
    return piece.sha256, kind_of(piece.name), piece.start, piece.end
