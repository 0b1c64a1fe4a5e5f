"""Executors of a pass's tasks: this process, a pool of them, or Ray; each leaves a record.

datatrove's own local executor is not used: its pool waits for ever for a task whose worker was
killed, and its workers outlive a killed parent (docs/decisions/0015-tasks-of-a-preparation.md).
Workers hold the folder's lock with their parent: whoever comes next sees if they still work.
"""

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal, Protocol

from components.errors import RecipeError
from data_prep.stages import record
from data_prep.stages.folder import Say, full_disk_told, share_lock
from data_prep.stages.plan import PASSES, read_plan
from data_prep.stages.workers import WorkerKilledError, work

READING_SECONDS = 5.0
MOST_DEATHS = 3  # of workers in a row, without a task done between


def run_task(folder: Path, task: int) -> None:
    """Do a task of the pass in ``folder``, unless its record says that it is done.

    Raises:
        RecipeError: its input is bad, or the disk is full.
    """
    plan = read_plan(folder)
    if record.read_record(folder, task, plan.key) is not None:
        return
    _, function = PASSES[plan.work]
    tally, stem = record.DocumentTally(), record.stem_of(folder, task)
    with full_disk_told(folder):
        files = resolve_name(function)(plan.tasks[task], plan.settings, stem, tally)
        record.write_record(folder, task, plan.key, files, tally)


def run_task_elsewhere(folder: Path, task: int) -> None:
    """Do a task for a command that does not see this process: leave it what goes wrong."""
    try:
        run_task(folder, task)
    except RecipeError as error:
        record.write_failure(folder, task, error)
        raise


class Executor(Protocol):
    """Do tasks of the pass in ``folder``; return when nobody works on them any more."""

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine, or this one; ``leave_failures`` to a command elsewhere."""

    workers: int | Literal["auto"]
    leave_failures: bool

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Do the tasks, again if a worker is killed.

        Raises:
            RecipeError: what a task says is wrong, or its worker is killed time and again.
        """
        act = run_task_elsewhere if self.leave_failures else run_task
        workers = min(len(tasks), _workers(self.workers))
        if workers <= 1:
            _tell((act(folder, task) for task in tasks), folder, len(tasks), say)
            return
        key, left, deaths = read_plan(folder).key, list(tasks), 0
        while left:
            try:
                with closing(work(act, folder, left, workers)) as done:
                    _tell(done, folder, len(left), say)
            except WorkerKilledError:
                say(f"{folder.name}: a worker was killed, perhaps for its memory; going on")
            before, left = left, record.missing_tasks(folder, left, key)
            deaths = deaths + 1 if left == before else 0
            if deaths == MOST_DEATHS:
                problem = f"workers were killed {deaths} times and no task was done between"
                remedy = f"try fewer than {workers}, or smaller data.preparation.shard_bytes"
                raise RecipeError("data.preparation.workers", problem, remedy)


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """Tasks on a Ray cluster, ``workers`` at a time, by datatrove's executor.

    Its own markers of what is done are not believed: it is told the tasks without a record.
    """

    workers: int | Literal["auto"]

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        from datatrove.executor.ray import RayPipelineExecutor  # needs Ray

        logs = folder / f"ray-{secrets.token_hex(4)}"
        RayPipelineExecutor(
            pipeline=[partial(_run_rank, folder, tuple(tasks))],
            tasks=len(tasks),
            workers=_workers(self.workers),
            logging_dir=str(logs),
            skip_completed=False,
        ).run()
        shutil.rmtree(logs, ignore_errors=True)


def _run_rank(
    folder: Path, tasks: tuple[int, ...], data: object, rank: int, world_size: int
) -> None:
    """Do the rank's task: datatrove calls each step of its pipeline so."""
    share_lock(folder)
    os.environ["RAYON_NUM_THREADS"] = "1"  # Ray has given it one core
    run_task_elsewhere(folder, tasks[rank])


def _workers(setting: int | Literal["auto"]) -> int:
    """Count the workers: ``auto`` takes every core that this process may use."""
    if setting != "auto":
        return setting
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _tell(steps: Iterable[object], folder: Path, tasks: int, say: Say) -> None:
    """Take every step and say how many are done, not more often than a person reads."""
    due = time.monotonic() + READING_SECONDS
    for done, _ in enumerate(steps, start=1):
        if time.monotonic() >= due:
            say(f"{folder.name}: {done} of {tasks} tasks")
            due = time.monotonic() + READING_SECONDS
