"""A few gloo processes that run one case after another."""

import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

TIMEOUT_SECONDS = 600
DYING_SECONDS = 1.0
MAXIMUM_THREADS = 50  # of one process
# Imported once per worker instead of in each process.
PRELOADED = [
    "torch.distributed.tensor",
    "components.checkpoint.saving",
    "components.engine.mesh_engine",
    "tests.components.checkpoint.saver_cases",
    "tests.components.distributed.experts_cases",
    "tests.components.distributed.test_microbatches",
    "tests.components.engine.test_init_from",
]


class Ranks:
    """Call functions on ``count`` processes at once, which are stopped between calls.

    A case leaves its gloo groups behind, and each of their threads wakes a hundred times a
    second. The processes are therefore replaced when they have many threads: forks of a warm
    server start in a twentieth of a second. They are also replaced after a call that fails,
    because some ranks may still wait for others. A function comes from a module that a
    process can import, never from a test's body.
    """

    def __init__(self, count: int) -> None:
        self.timeout_seconds: float = TIMEOUT_SECONDS
        self._count = count
        self._calls = 0
        self._processes: dict[Connection, BaseProcess] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __call__(self, case: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what each rank returned; the first exception fails the test with its trace."""
        self._calls += 1
        try:
            if not self._processes:
                self._start()
            self._signal(signal.SIGCONT)
            for pipe in self._processes:
                pipe.send((self._calls, case, arguments))
            answers = self._receive()
            self._signal(signal.SIGSTOP)
        except BaseException:  # an interrupt, too: the ranks wait for the next case
            self._stop()
            raise
        if max(self.count_threads()) > MAXIMUM_THREADS:
            self._stop()
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def count_threads(self) -> list[int]:
        """Count the threads of each running process."""
        tasks = [Path(f"/proc/{process.pid}/task") for process in self._processes.values()]
        return [len(list(folder.iterdir())) for folder in tasks]

    def _start(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        store = Path(self._folder.name) / f"store{self._calls}"
        for rank in range(self._count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, self._count, store))
            process.start()
            there.close()  # so that the end of a process ends its pipe
            self._processes[here] = process

    def _stop(self) -> None:
        for pipe, process in self._processes.items():
            process.kill()
            process.join()
            pipe.close()
        self._processes = {}

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            assert process.pid
            os.kill(process.pid, number)

    def _receive(self) -> list[Any]:
        deadline = time.monotonic() + self.timeout_seconds
        ranks = {pipe: rank for rank, pipe in enumerate(self._processes)}
        answers: dict[int, Any] = {}
        while len(answers) < self._count:
            waiting = [pipe for pipe, rank in ranks.items() if rank not in answers]
            ready = wait(waiting, max(0, deadline - time.monotonic()))
            assert ready, f"ranks {[ranks[pipe] for pipe in waiting]} hang"
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    call, succeeded, value = pipe.recv()
                except EOFError:
                    raise AssertionError(self._describe_death(ranks[pipe])) from None
                assert call == self._calls, f"an answer to call {call} instead of {self._calls}"
                assert succeeded, self._find_death() or value
                answers[ranks[pipe]] = value
        return [answers[rank] for rank in range(self._count)]

    def _find_death(self) -> str | None:
        """Describe the death of a rank, from which the errors of other ranks follow."""
        processes = [*self._processes.values()]
        dead = wait([process.sentinel for process in processes], DYING_SECONDS)
        ranks = [rank for rank, process in enumerate(processes) if process.sentinel in dead]
        return self._describe_death(ranks[0]) if ranks else None

    def _describe_death(self, rank: int) -> str:
        process = [*self._processes.values()][rank]
        process.join(10)
        file = _error_file(Path(self._folder.name), rank)
        errors = file.read_text("utf-8", "replace") if file.exists() else ""
        return f"rank {rank} died with status {process.exitcode}:\n{errors[-4000:]}"


def _error_file(folder: Path, rank: int) -> Path:
    return folder / f"stderr{rank}"


def _serve(pipe: Connection, rank: int, count: int, store: Path) -> None:
    import torch
    import torch.distributed as dist

    os.dup2(os.open(_error_file(store.parent, rank), os.O_WRONLY | os.O_CREAT, 0o600), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=TIMEOUT_SECONDS // 2),
    )
    while True:
        call, case, arguments = pipe.recv()
        try:
            pipe.send((call, True, case(*arguments)))
        except Exception:  # noqa: BLE001  # whatever it is, the test shows it
            pipe.send((call, False, traceback.format_exc()))
