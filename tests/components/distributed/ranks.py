"""A few gloo processes that stay, and run one case after another."""

import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT_SECONDS = 120
# What cases import, once for all processes of a worker rather than in each of them.
PRELOADED = [
    "torch.distributed.tensor",
    "components.checkpoint.saving",
    "components.engine.mesh_engine",
    "tests.components.checkpoint.saver_cases",
    "tests.components.distributed.experts_cases",
    "tests.components.distributed.microbatches_cases",
]


class Ranks:
    """Call functions on ``count`` processes at once, which are stopped in between.

    A thread of each of gloo's groups wakes a hundred times a second even if nothing is sent:
    worlds of many groups that merely waited would take half a processor from other tests.
    A function comes from a module that a process can import, never from a test's body.
    """

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipes, self._processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            store = Path(self._folder.name) / "store"
            process = context.Process(target=_serve, args=(there, rank, count, store))
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def __call__(self, case: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what each rank returned; a rank's exception fails the test with its trace."""
        self._signal(signal.SIGCONT)
        for pipe in self._pipes:
            pipe.send((case, arguments))
        answers = [self._receive(pipe) for pipe in self._pipes]
        self._signal(signal.SIGSTOP)
        failed = [value for done, value in answers if not done]
        assert not failed, failed[0]
        return [value for _, value in answers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            assert process.pid
            os.kill(process.pid, number)

    @staticmethod
    def _receive(pipe: Connection) -> tuple[bool, Any]:
        assert pipe.poll(TIMEOUT_SECONDS), "a rank hangs"
        answer: tuple[bool, Any] = pipe.recv()
        return answer


def _serve(pipe: Connection, rank: int, count: int, store: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=TIMEOUT_SECONDS // 2),
    )
    while True:
        case, arguments = pipe.recv()
        try:
            pipe.send((True, case(*arguments)))
        except Exception:  # noqa: BLE001  # whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))
