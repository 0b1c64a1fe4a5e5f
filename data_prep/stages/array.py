"""How the tasks of a pass are dealt to the elements of a job array, and which array it was."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from components.data.files import replace_atomically
from components.errors import RecipeError

FILE_NAME = "array.json"


class QueuedError(RecipeError):
    """The work was handed to a queue and nobody waits: the same command goes on."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """Groups of tasks, one an element, of ``workers`` processes each; the ``job`` it became."""

    groups: tuple[tuple[int, ...], ...]
    workers: int | Literal["auto"]
    job: str | None

    def write(self, folder: Path) -> None:
        with replace_atomically(folder / FILE_NAME) as file:
            file.write(json.dumps(asdict(self)).encode())


def deal_tasks(tasks: Sequence[int], most_jobs: int) -> tuple[tuple[int, ...], ...]:
    """Deal tasks in turn, so that neighbours, which are often alike, are spread."""
    jobs = min(most_jobs, len(tasks))
    return tuple(tuple(tasks[first::jobs]) for first in range(jobs))


def read_array(folder: Path) -> Array | None:
    """Read what :meth:`Array.write` wrote; nothing if no array was submitted yet."""
    if not (folder / FILE_NAME).exists():
        return None
    tree = json.loads((folder / FILE_NAME).read_bytes())
    return Array(**{**tree, "groups": tuple(map(tuple, tree["groups"]))})
