"""The tasks of a pass on a Ray cluster, by datatrove's executor.

Its own markers of what is done are not believed: it is told the tasks that have no record.
"""

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from datatrove.executor.ray import RayPipelineExecutor

from data_prep.stages.executors import Say, cores, run_task_elsewhere
from data_prep.stages.lock import share_lock


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """A pipeline of one step: the rank's task of a list of tasks."""

    folder: Path
    tasks: tuple[int, ...]

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        share_lock(self.folder)
        os.environ["RAYON_NUM_THREADS"] = "1"  # Ray has given it one core
        run_task_elsewhere(self.folder, self.tasks[rank])


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """As many tasks at a time as ``workers``, wherever Ray has a core for them."""

    workers: int | Literal["auto"]

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        workers = cores() if self.workers == "auto" else self.workers
        logs = folder / f"ray-{secrets.token_hex(4)}"
        RayPipelineExecutor(
            pipeline=[RankTask(folder=folder, tasks=tuple(tasks))],
            tasks=len(tasks),
            workers=workers,
            logging_dir=str(logs),
            skip_completed=False,
        ).run()
        shutil.rmtree(logs, ignore_errors=True)
