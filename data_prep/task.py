"""Job array element for a stage's tasks: ``python -m data_prep.task STAGES NAME K``.

The element runs the K-th group of tasks from ``array.json`` in the stage's folder, with the
number of processes given there. It skips tasks that are done.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from components.data.files import write_atomically
from components.errors import RecipeError
from components.terminal import log_line
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks
from data_prep.stages.runner import Local

FILE_NAME = "array.json"


class QueuedError(RecipeError):
    """The work was submitted to a queue without waiting; repeat the command to continue."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """A job array: a group of tasks per element, ``workers`` processes each, the ``job`` id."""

    groups: tuple[tuple[int, ...], ...]
    workers: int | Literal["auto"]
    job: str | None

    def save_array(self, folder: Path) -> None:
        write_atomically(folder / FILE_NAME, json.dumps(asdict(self)))


def deal_tasks(tasks: Sequence[int], most_jobs: int) -> tuple[tuple[int, ...], ...]:
    """Split tasks round-robin into groups, so that similar neighbors are spread over them."""
    jobs = min(most_jobs, len(tasks))
    return tuple(tuple(tasks[first::jobs]) for first in range(jobs))


def read_array(folder: Path) -> Array | None:
    """Read what :meth:`Array.save_array` wrote; return None if no array was submitted yet."""
    if not (folder / FILE_NAME).exists():
        return None
    return TypeAdapter(Array).validate_json((folder / FILE_NAME).read_bytes())


def main(words: Sequence[str]) -> int:
    """Run the group; return 0 if it is done, 2 for an error that the user can fix."""
    stages, name, element = words
    folder = Path(stages) / name
    array = read_array(folder)
    assert array is not None, "the command writes it before it submits"
    missing = missing_tasks(folder, array.groups[int(element)], read_plan(folder).plan_key)
    try:
        Local(workers=array.workers).run_tasks(folder, missing, log_line)
    except RecipeError as error:
        log_line(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
