"""What a pass does, as data: settings, tasks, word lists, and the hash of all of them.

The plan lies in the pass's folder as JSON; tasks on whatever machine read it from there.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.data.files import record_file, replace_atomically
from data_prep.formats import kind_of

LISTS = ("stop_words", "flagged_words")


def pin_lists(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Give ``steps`` with absolute paths of the lists, and beside it the lists' hashes."""
    pinned = copy.deepcopy(dict(steps))
    hashes = {}
    filters = pinned["filters"]
    ratios: Any = filters["text_ratios"] if isinstance(filters, dict) else "none"
    for name in LISTS if isinstance(ratios, dict) else ():
        path = Path(ratios[name])
        if path.is_file():  # what is missing is refused by the step itself
            ratios[name] = str(path.absolute())
            hashes[name] = record_file(path).sha256
    return {"steps": pinned, "lists": hashes}


FILE_NAME = "plan.json"


@dataclass(frozen=True, kw_only=True)
class InputPiece:
    """A file, a byte range of it, or without a path an embedded corpus or a dataset."""

    name: str
    path: str | None
    sha256: str
    bytes: int
    start: int
    end: int | None


@dataclass(frozen=True, kw_only=True)
class PassTask:
    """What one process works through at a time, in this order."""

    source: str
    pieces: tuple[InputPiece, ...]


@dataclass(frozen=True, kw_only=True)
class PassPlan:
    """One pass over the corpus.

    ``work`` is the module that does a task; its ``VERSION`` counts changes of its results.
    """

    work: str
    version: int
    settings: Mapping[str, Any]
    tasks: tuple[PassTask, ...]

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


def read_plan(folder: Path) -> PassPlan:
    """Read what :meth:`PassPlan.write` wrote."""
    tree = json.loads((folder / FILE_NAME).read_bytes())
    tasks = tuple(
        PassTask(
            source=task["source"], pieces=tuple(InputPiece(**piece) for piece in task["pieces"])
        )
        for task in tree["tasks"]
    )
    return PassPlan(**{**tree, "tasks": tasks})


def _identity(piece: InputPiece) -> Sequence[Any]:
    return piece.sha256, kind_of(piece.name), piece.start, piece.end
