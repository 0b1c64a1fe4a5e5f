"""A process that makes no progress ends itself, and says before where it stood.

When a piece of work is over its time a thread writes every thread's stack and the last
collectives, and ends the process. Where a call into C holds the interpreter's lock a timer of
`faulthandler`, a thread in C, writes the stacks and ends it a moment later. The collectives are
in torch's flight recorder, a ring in memory, for NCCL and gloo alike:
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html.
"""

import faulthandler
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from components.distributed import collectives
from components.fault_tolerance.failures import WAITING
from components.run.event_log import node_name
from components.terminal import say
from components.torch_internals.distributed import flight_record

HUNG = 4  # the exit status of a process that its watchdog ended
STANDARD_ERROR = 2  # its descriptor; Python's object for it may have been replaced
# After the limit. Who waits for others ends last: its launcher should see first the rank that
# they wait for. What the thread writes may wait for a file system: it, too, has a limit.
CULPRIT_SECONDS, HELD_SECONDS, WAITING_SECONDS, LAST_SECONDS = 0.5, 1.0, 1.5, 1.8

_GROUPS_OF_TORCH = str(Path(dist.__file__).parent)
_TORCH = str(Path(_GROUPS_OF_TORCH).parent)


@dataclass(frozen=True)
class WatchedWork:
    """A piece of work, after ``step`` and ``tokens``, and how many seconds it may take."""

    name: str
    step: int
    tokens: int
    seconds: float


@dataclass(kw_only=True, eq=False)
class HangWatch:
    """Watch this process; ``collectives`` gives what it waits in, if anything, and the last.

    Reports go below ``folder``, a folder for each piece of work that hung; ``on_hang`` is given
    that work, a line of text and the report. A process that holds the lock can still write its
    stacks to standard error, which is the rank's log. No file is opened before a hang.
    """

    folder: Path
    rank: int
    collectives: Callable[[], tuple[str | None, dict[str, Any]]]
    on_hang: Callable[[WatchedWork, str, Mapping[str, Any]], None]

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._work = WatchedWork("nothing", 0, 0, float("inf"))
        self._deadline = float("inf")
        self._is_over = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def expect(self, work: WatchedWork) -> None:
        """Allow the seconds of ``work`` from now on."""
        with self._changed:
            before, self._deadline = self._deadline, time.monotonic() + work.seconds
            self._work = work
            if self._deadline < before:
                self._changed.notify()
            faulthandler.dump_traceback_later(
                work.seconds + HELD_SECONDS, file=STANDARD_ERROR, exit=True
            )

    def stop(self) -> None:
        with self._changed:
            self._is_over = True
            faulthandler.cancel_dump_traceback_later()
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(None if left == float("inf") else left)
                if self._is_over:
                    return
            work = self._work
        # Whatever the lines below wait for, a file system that is gone too, this process ends.
        faulthandler.dump_traceback_later(LAST_SECONDS, file=STANDARD_ERROR, exit=True)
        waits_in, recorded = self.collectives()
        node, file = node_name(os.environ), self.folder / work.name.replace(" ", "-")
        file /= f"rank-{self.rank}.json"
        state = "is in no collective" if waits_in is None else WAITING + waits_in
        text = f"{work.name} took more than {work.seconds:g} s; rank {self.rank} on {node} "
        text += f"{state}; its stacks are in {file}"
        say(text)
        report = {
            "rank": self.rank,
            "node": node,
            "work": work.name,
            "limit_seconds": work.seconds,
            "waits_in": waits_in,
            "stacks": stacks(),
            "collectives": recorded,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        self.on_hang(work, text, report)
        time.sleep(CULPRIT_SECONDS if waits_in is None else WAITING_SECONDS)
        os._exit(HUNG)


def stacks() -> list[str]:
    """Give the stack of every thread of this process, innermost call first."""
    with tempfile.TemporaryFile("w+") as stream:  # it writes to a file's descriptor
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read().splitlines()


def record_collectives(entries: int) -> None:
    """Keep the last ``entries``, unless the environment says how many; before any group."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(entries))


def last_collectives() -> tuple[str | None, dict[str, Any]]:
    """Return the collective that this rank waits in, if any, and all that are recorded.

    What is started is not always waited for: a receive that a pipeline has posted is not. On a
    CPU, where the thread that waits is the one that called, its stack tells. On other devices
    the host waits elsewhere.
    """
    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    recorded: dict[str, Any] = json.loads(flight_record(of_nccl=nccl))
    active = [entry for entry in recorded.get("entries", []) if not entry["retired"]]
    waits = active and (dist.get_backend() != "gloo" or _main_thread_waits())
    return (str(active[-1]["profiling_name"]) if waits else None), recorded


def _main_thread_waits() -> bool:
    """Whether the main thread has last called torch's code for groups, or waits in ours.

    A wait may be some of torch's frames deep: under autograd, say, or a dispatcher.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None and frame.f_code.co_filename == collectives.__file__:
        return True
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_filename.startswith(_GROUPS_OF_TORCH):
            return True
        frame = frame.f_back
    return False
