"""Executors of a pass's tasks: this process, a pool of them, or Ray; each leaves a record.

datatrove's own local executor is not used: its pool waits for ever for a task whose worker was
killed, and its workers outlive a killed parent (docs/decisions/0015-pool-of-the-library.md).
A worker here asks the kernel to be killed with its parent, and holds the folder's lock with it:
whoever comes next sees if somebody still works there.
"""

import ctypes
import errno
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal, Protocol

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import DYING_SECONDS, Holder
from data_prep.stages import record
from data_prep.stages.plan import PASSES, read_plan

FULL = (errno.ENOSPC, errno.EDQUOT)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
READING_SECONDS = 5.0
MOST_DEATHS = 3  # of workers in a row, without a task done between

Say = Callable[[str], None]
Act = Callable[[Path, int], None]


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Turn the system's error into one that says how to go on.

    Raises:
        RecipeError: the disk or the user's quota is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        problem = f"no space is left in {folder} ({error.strerror})"
        remedy = "free some, and give the same command again: what is finished stays"
        raise RecipeError("data.folder", problem, remedy) from error


def make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Make a folder of the preparation.

    Raises:
        RecipeError: it cannot be made there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        if error.errno in FULL:
            raise
        remedy = "name a folder that you may write to"
        raise RecipeError("data.folder", f"cannot write there: {error}", remedy) from error


def alone(folder: Path, say: Say) -> AbstractContextManager[int]:
    """Hold the folder's lock while nobody else works there.

    Raises:
        RecipeError: another preparation does, or workers of one that was killed.
    """
    occupied = partial(_occupied, folder)
    return writer_lock.alone(folder, seconds=DYING_SECONDS, occupied=occupied, say=say)


def share_lock(folder: Path) -> None:
    """Hold the folder's lock with the preparation until this process ends.

    Raises:
        RecipeError: another preparation has taken the folder.
    """
    writer_lock.share(folder, occupied=partial(_occupied, folder))


def _occupied(folder: Path, holder: Holder | None) -> RecipeError:
    who = holder or "a process that left no name"
    way = "wait until it has ended, or stop it"
    return RecipeError(str(folder), f"data is being prepared there by {who}", way)


def work_under(parent: int, folder: Path) -> None:
    """Make this process a worker: it ends with ``parent``, and until then holds the lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["RAYON_NUM_THREADS"] = "1"  # of tokenizers: a worker is one of many
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    share_lock(folder)


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
                _pool(act, folder, left, workers, say)
            except BrokenProcessPool:
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


def _pool(act: Act, folder: Path, tasks: Sequence[int], workers: int, say: Say) -> None:
    """Do the tasks in new processes, and end these whatever happens."""
    context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    own = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, work_under, (os.getpid(), folder))
    try:
        try:
            futures = [pool.submit(act, folder, task) for task in tasks]
        except (OSError, ValueError) as error:
            # A worker was killed before the next one has started. The pool has closed the pipes
            # that this would get: they are gone, or their numbers are another pipe's already
            # and stand twice in a list, which `fork_exec` refuses.
            raise BrokenProcessPool from error
        _tell((future.result() for future in as_completed(futures)), folder, len(tasks), say)
    except BaseException:  # an interrupt too: nobody waits for tasks that run
        for process in set(multiprocessing.active_children()) - own:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
