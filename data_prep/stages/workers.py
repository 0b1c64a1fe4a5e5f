"""Processes of this machine that do tasks, each at the end of a pipe; a killed one is noticed.

A worker asks the kernel to be killed with its parent, and holds the folder's lock with it. Why
this is no library's pool: docs/decisions/0015-tasks-of-a-preparation.md.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from data_prep.stages.folder import share_lock

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Act = Callable[[Path, int], None]


class WorkerKilledError(Exception):
    """A worker ended without an answer."""


def work(act: Act, folder: Path, tasks: Sequence[int], workers: int) -> Generator[None]:
    """Do the tasks in new processes, one after the other; end these whatever happens.

    Raises:
        WorkerKilledError: one of them is gone.
    """
    spawn, team = multiprocessing.get_context("spawn"), dict[Connection, SpawnProcess]()
    try:
        for _ in range(workers):  # a fork would copy threads' locks
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(theirs, act, os.getpid(), folder))
            process.start()
            team[ours] = process
            theirs.close()  # or its end would not be seen
        yield from _results(list(team), tasks)
    finally:  # an interrupt too: nobody waits for tasks that run
        for process in team.values():
            process.kill()
            process.join()


def _work(pipe: Connection, act: Act, parent: int, folder: Path) -> None:
    """Do the tasks whose numbers come, and send back what goes wrong, or None."""
    work_under(parent, folder)
    while True:
        task = pipe.recv()
        try:
            act(folder, task)
        except Exception as error:  # noqa: BLE001 (the parent raises it)
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
            pipe.send(error)
        else:
            pipe.send(None)


def _results(pipes: list[Connection], tasks: Sequence[int]) -> Iterator[None]:
    """Give each worker a task whenever it has none, until all are done."""
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


def work_under(parent: int, folder: Path) -> None:
    """Make this process a worker: it ends with ``parent``, and until then holds the lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["RAYON_NUM_THREADS"] = "1"  # of tokenizers: a worker is one of many
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    share_lock(folder)
