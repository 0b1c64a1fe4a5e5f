"""Job arrays that do the tasks of a pass: ``python -m data_prep.task STAGES PASS K``.

That is one element: it does the K-th group of tasks that ``array.json`` in the pass's folder
lists, in as many processes as it says; what is done already is left alone.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from components.data.files import replace_atomically
from components.errors import RecipeError
from components.terminal import say
from data_prep.stages.executors import Local
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks

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
    return TypeAdapter(Array).validate_json((folder / FILE_NAME).read_bytes())


def main(words: Sequence[str]) -> int:
    """Do the group; 0 done, 2 something that a user can mend."""
    stages, name, element = words
    folder = Path(stages) / name
    array = read_array(folder)
    assert array is not None, "the command writes it before it submits"
    left = missing_tasks(folder, array.groups[int(element)], read_plan(folder).key)
    try:
        Local(workers=array.workers, leave_failures=True).run(folder, left, say)
    except RecipeError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
