"""Runner of a stage: its folder and lock, the workers that do its tasks, its manifest.

A worker asks the kernel to kill it when its parent ends. It shares the folder's lock with its
parent, so that the next command sees whether workers still run. Why the pool is not a
library's: docs/decisions/0015-tasks-of-a-preparation.md.
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
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, Protocol

from components.errors import RecipeError
from components.run import writer_lock
from components.run.writer_lock import DYING_SECONDS, NAMELESS, Holder
from data_prep.stages import plan, record
from data_prep.stages.plan import InputPiece, StagePlan, StageTask

FULL = (errno.ENOSPC, errno.EDQUOT)
READING_SECONDS = 5.0
MOST_DEATHS = 3  # workers killed in a row without a finished task in between
PR_SET_PDEATHSIG = 1  # linux/prctl.h

Say = Callable[[str], None]


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turn an OSError for a full disk or quota into a RecipeError."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        problem = f"no space left in {folder} ({error.strerror})"
        remedy = "free space, and run the same command again: finished tasks are saved"
        raise RecipeError("data.folder", problem, remedy) from error


def make_folder(folder: Path) -> None:
    """Create a folder of the preparation, unless it exists; RecipeError if not permitted."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        remedy = "set it to a writable folder"
        raise RecipeError("data.folder", f"is not writable: {error}", remedy) from error


def lock_preparation(folder: Path, say: Say) -> AbstractContextManager[int]:
    """Lock the folder; RecipeError if a preparation or workers of a killed one run there."""
    occupied = partial(_occupied, folder)
    return writer_lock.lock_folder(folder, seconds=DYING_SECONDS, occupied=occupied, say=say)


def _occupied(folder: Path, holder: Holder | None) -> RecipeError:
    problem = f"{holder or NAMELESS} is preparing data in this folder"
    return RecipeError(str(folder), problem, "wait for that process to end, or stop it")


def run_task(folder: Path, task: int) -> None:
    """Do a task of the stage in ``folder``, unless it has a record.

    A RecipeError is also written to a file, because the command may not see this process.
    """
    planned = plan.read_plan(folder)
    if record.read_record(folder, task, planned.plan_key) is not None:
        return
    _, function = plan.STAGES[planned.work]
    tally, stem = record.DocumentTally(), record.stem_of(folder, task)
    try:
        with explain_full_disk(folder):
            files = resolve_name(function)(planned.tasks[task], planned.settings, stem, tally)
            record.write_record(folder, task, planned.plan_key, files, tally)
    except RecipeError as error:
        with suppress(OSError):  # the disk is full
            record.write_failure(folder, task, error)
        raise


class Executor(Protocol):
    """Does tasks of the stage in ``folder``; ``run`` returns when no process works on them."""

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Local:
    """Executor with processes on this machine, or in this process alone."""

    workers: int | Literal["auto"]

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        """Do the tasks; start again if a worker is killed, unless no task was finished."""
        workers = min(len(tasks), _count_workers(self.workers))
        if workers <= 1:
            _report(map(partial(run_task, folder), tasks), folder, len(tasks), say)
            return
        key, left, deaths = plan.read_plan(folder).plan_key, list(tasks), 0
        while left:
            try:
                with closing(_work_in_pool(folder, left, workers)) as done:
                    _report(done, folder, len(left), say)
            except WorkerKilledError:
                say(f"{folder.name}: a worker was killed, perhaps out of memory; continuing")
            before, left = left, record.missing_tasks(folder, left, key)
            deaths = deaths + 1 if left == before else 0
            if deaths == MOST_DEATHS:
                problem = f"workers were killed {deaths} times without finishing a task"
                remedy = f"use fewer than {workers}, or a smaller data.preparation.shard_bytes"
                raise RecipeError("data.preparation.workers", problem, remedy)


@dataclass(frozen=True, kw_only=True)
class OnRay:
    """Executor on a Ray cluster, ``workers`` tasks at a time, with datatrove's executor.

    datatrove gets the tasks without a record; its own markers of finished tasks are not used.
    """

    workers: int | Literal["auto"]

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        from datatrove.executor.ray import RayPipelineExecutor  # needs Ray

        logs = folder / f"ray-{secrets.token_hex(4)}"
        RayPipelineExecutor(
            pipeline=[partial(_run_rank, folder, tuple(tasks))],
            tasks=len(tasks),
            workers=_count_workers(self.workers),
            logging_dir=str(logs),
            skip_completed=False,
        ).run()
        shutil.rmtree(logs, ignore_errors=True)


def _run_rank(
    folder: Path, tasks: tuple[int, ...], data: object, rank: int, world_size: int
) -> None:
    """Do the rank's task. The signature is a step's in datatrove's pipeline."""
    writer_lock.share_lock(folder, occupied=partial(_occupied, folder))
    os.environ["RAYON_NUM_THREADS"] = "1"  # Ray assigns one core to a task
    run_task(folder, tasks[rank])


def _count_workers(setting: int | Literal["auto"]) -> int:
    """Return the number of workers; ``auto`` is every core that this process may use."""
    if setting != "auto":
        return setting
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _report(steps: Iterable[object], folder: Path, tasks: int, say: Say) -> None:
    """Run all steps; report progress at most every ``READING_SECONDS``."""
    due = time.monotonic() + READING_SECONDS
    for done, _ in enumerate(steps, start=1):
        if time.monotonic() >= due:
            say(f"{folder.name}: {done} of {tasks} tasks")
            due = time.monotonic() + READING_SECONDS


class WorkerKilledError(Exception):
    """A worker ended without sending a result."""


def _work_in_pool(folder: Path, tasks: Sequence[int], workers: int) -> Generator[None]:
    """Do the tasks in new processes; kill these at the end. May raise WorkerKilledError."""
    spawn, team = multiprocessing.get_context("spawn"), dict[Connection, SpawnProcess]()
    try:
        for _ in range(workers):  # spawn: a fork would copy locks held by threads
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(theirs, os.getpid(), folder))
            process.start()
            team[ours] = process
            theirs.close()  # otherwise the end of the process would not close the pipe
        yield from _results(list(team), tasks)
    finally:  # also after an interrupt: the command does not wait for running tasks
        for process in team.values():
            process.kill()
            process.join()


def _results(pipes: list[Connection], tasks: Sequence[int]) -> Iterator[None]:
    """Send each idle worker a task until all are done; yield once per finished task."""
    waiting, free, busy = list(reversed(tasks)), pipes, list[Connection]()
    while waiting or busy:
        try:
            while waiting and free:
                free[-1].send(waiting.pop())
                busy.append(free.pop())
            ended = wait(busy)
            ready = next(pipe for pipe in busy if pipe in ended)
            error: Exception | None = ready.recv()
        except (EOFError, OSError) as closed:
            raise WorkerKilledError from closed
        busy.remove(ready)
        free.append(ready)
        if error is not None:
            raise error
        yield


def _work(pipe: Connection, parent: int, folder: Path) -> None:
    """Do the tasks by the numbers that arrive; send back None or the error of each."""
    work_under(parent, folder)
    while True:
        task = pipe.recv()
        try:
            run_task(folder, task)
        except Exception as error:  # noqa: BLE001 (the parent raises it)
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
            pipe.send(error)
        else:
            pipe.send(None)


def work_under(parent: int, folder: Path) -> None:
    """Make this process a worker: it ends with ``parent`` and shares the folder's lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["RAYON_NUM_THREADS"] = "1"  # for tokenizers: there are many workers
    if os.getppid() != parent:
        os._exit(1)  # the parent died before prctl
    writer_lock.share_lock(folder, occupied=partial(_occupied, folder))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A finished stage: its plan, its folder and its manifest."""

    plan: StagePlan
    folder: Path
    manifest: record.StageManifest

    def output_piece(self, task: int, output: int) -> InputPiece:
        """Return one output file of one task as an input piece of another stage."""
        file = self.manifest.outputs[task][output]
        return plan.make_whole_piece(self.folder / file.name, file)


@dataclass(frozen=True, kw_only=True)
class StageRunner:
    """Runs stages: the folder of all stages, the executor of tasks, the report function."""

    root: Path
    executor: Executor
    say: Say

    def run_stage(
        self, work: str, settings: Mapping[str, Any], tasks: Sequence[StageTask]
    ) -> Stage:
        """Do the missing tasks of a stage, in its folder below ``root``.

        Raises:
            RecipeError: bad input, a full disk, another command that works in the folder, or
                tasks that ended without a record.
        """
        version, _ = plan.STAGES[work]
        planned = StagePlan(work=work, version=version, settings=settings, tasks=tuple(tasks))
        key = planned.plan_key
        folder = self.root / f"{work}-{key[:12]}"
        with explain_full_disk(folder):
            make_folder(folder)
            manifest = record.read_manifest(folder, key)
            if manifest is not None:
                self.say(f"{folder.name}: already done")
                return Stage(plan=planned, folder=folder, manifest=manifest)
            with lock_preparation(folder, self.say):
                planned.write_plan(folder)
                self._do_missing(folder, len(tasks), key)
                for partial_file in folder.glob(".*.partial"):
                    partial_file.unlink()
                manifest = record.write_manifest(folder, key, len(tasks))
                return Stage(plan=planned, folder=folder, manifest=manifest)

    def _do_missing(self, folder: Path, total: int, key: str) -> None:
        missing = record.missing_tasks(folder, range(total), key)
        for task in missing:
            record.take_failure(folder, task)
        if missing:
            self.say(f"{folder.name}: {len(missing)} of {total} tasks to do")
            self.executor.run_tasks(folder, missing, self.say)
            missing = record.missing_tasks(folder, missing, key)
        for task in missing:
            failure = record.take_failure(folder, task)
            if failure is not None:
                raise failure
        if missing:
            logs = folder / "jobs"
            where = f"; job logs are in {logs}" if logs.exists() else ""
            problem = f"{len(missing)} of {total} tasks ended without a result"
            remedy = f"run the same command again: it runs only these tasks{where}"
            raise RecipeError(str(folder), f"{problem}, the first is task {missing[0]}", remedy)
