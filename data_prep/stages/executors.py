"""Executors of a pass's tasks: this process, a pool of them, or Ray; each leaves a record.

datatrove's own local executor is not used: its pool waits for ever for a task whose worker was
killed, and its workers outlive a killed parent (docs/decisions/0015-pool-of-the-library.md).
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from components.errors import RecipeError
from data_prep.stages.lock import full_disk_told, work_under
from data_prep.stages.plan import read_plan
from data_prep.stages.record import (
    missing_tasks,
    read_record,
    stem_of,
    write_failure,
    write_record,
)
from data_prep.stages.tally import DocumentTally


def run_task(folder: Path, task: int) -> None:
    """Do a task of the pass in ``folder``, unless its record says that it is done.

    Raises:
        RecipeError: its input is bad, or the disk is full.
    """
    plan = read_plan(folder)
    if read_record(folder, task, plan.key) is not None:
        return
    work = import_module(f"data_prep.stages.{plan.work}").work
    tally = DocumentTally()
    with full_disk_told(folder):
        files = work(plan.tasks[task], plan.settings, stem_of(folder, task), tally)
        write_record(folder, task, plan.key, files, tally)


def run_task_elsewhere(folder: Path, task: int) -> None:
    """Do a task for a command that does not see this process: leave it what goes wrong."""
    try:
        run_task(folder, task)
    except RecipeError as error:
        write_failure(folder, task, error)
        raise


READING_SECONDS = 5.0
MOST_DEATHS = 3  # of workers in a row, without a task done between

Say = Callable[[str], None]
Act = Callable[[Path, int], None]


class Executor(Protocol):
    """Do tasks of the pass in ``folder``; return when nobody works on them any more."""

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None: ...


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


class TaskProgress:
    """Say how many tasks are done, not more often than a person reads."""

    def __init__(self, *, name: str, tasks: int, say: Say) -> None:
        self._name, self._tasks, self._say = name, tasks, say
        self._done = 0
        self._next = time.monotonic() + READING_SECONDS

    def step(self) -> None:
        self._done += 1
        if time.monotonic() >= self._next:
            self._say(f"{self._name}: {self._done} of {self._tasks} tasks")
            self._next = time.monotonic() + READING_SECONDS


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine; with one worker, this process.

    With ``leave_failures`` what goes wrong is also left in the folder, for a command elsewhere.
    """

    workers: int | Literal["auto"]
    leave_failures: bool

    def run(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Do the tasks, again if a worker is killed.

        Raises:
            RecipeError: what a task says is wrong, or that its worker is killed time and again.
        """
        act = run_task_elsewhere if self.leave_failures else run_task
        workers = min(len(tasks), cores() if self.workers == "auto" else self.workers)
        if workers <= 1:
            progress = TaskProgress(name=folder.name, tasks=len(tasks), say=say)
            for task in tasks:
                act(folder, task)
                progress.step()
            return
        key, left, deaths = read_plan(folder).key, list(tasks), 0
        while left:
            try:
                _pool(act, folder, left, workers, say)
            except BrokenProcessPool:
                say(f"{folder.name}: a worker was killed, perhaps for its memory; going on")
            before, left = left, missing_tasks(folder, left, key)
            deaths = deaths + 1 if left == before else 0
            if deaths == MOST_DEATHS:
                raise RecipeError(
                    "data.preparation.workers",
                    f"workers were killed {deaths} times and no task was done between",
                    f"try fewer than {workers}, or smaller data.preparation.shard_bytes",
                )


def _pool(act: Act, folder: Path, tasks: Sequence[int], workers: int, say: Say) -> None:
    """Do the tasks in new processes, and end these whatever happens."""
    context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    own = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers, context, initializer=work_under, initargs=(os.getpid(), folder)
    )
    try:
        futures = _submit(pool, act, folder, tasks)
        progress = TaskProgress(name=folder.name, tasks=len(tasks), say=say)
        for future in as_completed(futures):
            future.result()
            progress.step()
    except BaseException:  # an interrupt too: nobody waits for tasks that run
        for process in set(multiprocessing.active_children()) - own:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(
    pool: ProcessPoolExecutor, act: Act, folder: Path, tasks: Sequence[int]
) -> list[Future[None]]:
    """Hand the tasks over; a worker may be killed before the next one has started.

    The pool has closed the pipes then that a new worker would get: they are gone, or their
    numbers are another pipe's already and stand twice in a list, which `fork_exec` refuses.
    """
    try:
        return [pool.submit(act, folder, task) for task in tasks]
    except (OSError, ValueError) as error:
        raise BrokenProcessPool from error
