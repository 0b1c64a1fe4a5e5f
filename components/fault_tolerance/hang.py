"""Hang detection: a process without progress writes a report and ends itself.

When work exceeds its time limit, a thread writes the stacks of all threads and the last
collectives, and ends the process. If a C call holds the GIL, a timer of `faulthandler` (a C
thread) writes the stacks and ends the process. The collectives come from torch's flight
recorder, for both NCCL and gloo:
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
from components.terminal import log_line
from components.torch_internals.distributed import flight_record

HUNG = 4  # exit status of a process that its watchdog ended
STANDARD_ERROR = 2  # file descriptor; Python may have replaced its stream
# Seconds after the limit. Ranks that wait for others end last: the launcher should see the
# culprit first. LAST_SECONDS limits the writing of the report, since a file system may hang.
CULPRIT_SECONDS, HELD_SECONDS, WAITING_SECONDS, LAST_SECONDS = 0.5, 1.0, 1.5, 1.8

_GROUPS_OF_TORCH = str(Path(dist.__file__).parent)
_TORCH = str(Path(_GROUPS_OF_TORCH).parent)


@dataclass(frozen=True)
class WatchedWork:
    """Work after ``step`` and ``tokens``, and its time limit in seconds."""

    name: str
    step: int
    tokens: int
    seconds: float


@dataclass(kw_only=True, eq=False)
class HangWatch:
    """Watchdog of this process: end it when work exceeds its time limit.

    ``collectives`` returns the collective that the process waits in, if any, and the last
    collectives. Reports go to ``folder``, in a subfolder for each hung work. ``on_hang`` gets
    the work, a line of text and the report. If the GIL is held, only the stacks are written, to
    standard error (the rank's log). No file is opened before a hang.
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

    def watch_work(self, work: WatchedWork) -> None:
        """Start the time limit of ``work`` now, instead of the previous work's."""
        with self._changed:
            before, self._deadline = self._deadline, time.monotonic() + work.seconds
            self._work = work
            if self._deadline < before:
                self._changed.notify()
            faulthandler.dump_traceback_later(
                work.seconds + HELD_SECONDS, file=STANDARD_ERROR, exit=True
            )

    def stop_watching(self) -> None:
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
        # End this process even if the lines below block, for example on a file system.
        faulthandler.dump_traceback_later(LAST_SECONDS, file=STANDARD_ERROR, exit=True)
        waits_in, recorded = self.collectives()
        node, file = node_name(os.environ), self.folder / work.name.replace(" ", "-")
        file /= f"rank-{self.rank}.json"
        state = "is in no collective" if waits_in is None else WAITING + waits_in
        text = f"{work.name} took more than {work.seconds:g} s; rank {self.rank} on {node} "
        text += f"{state}; its stacks are in {file}"
        log_line(text)
        report = {
            "rank": self.rank,
            "node": node,
            "work": work.name,
            "limit_seconds": work.seconds,
            "waits_in": waits_in,
            "stacks": list_stacks(),
            "collectives": recorded,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        self.on_hang(work, text, report)
        time.sleep(CULPRIT_SECONDS if waits_in is None else WAITING_SECONDS)
        os._exit(HUNG)


def list_stacks() -> list[str]:
    """Return the lines of all threads' stacks in this process, innermost call first."""
    with tempfile.TemporaryFile("w+") as stream:  # `faulthandler` needs a file descriptor
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read().splitlines()


def record_collectives(entries: int) -> None:
    """Size torch's flight recorder, before any process group; the environment has priority."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(entries))


def last_collectives() -> tuple[str | None, dict[str, Any]]:
    """Return the collective that this rank waits in, if any, and all recorded collectives.

    A rank does not always wait for an active collective, such as a receive that a pipeline
    posted early. With gloo, the calling thread waits, so its stack shows whether it does. With
    other backends, the host waits elsewhere, so an active collective counts as waited for.
    """
    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    recorded: dict[str, Any] = json.loads(flight_record(of_nccl=nccl))
    active = [entry for entry in recorded.get("entries", []) if not entry["retired"]]
    waits = active and (dist.get_backend() != "gloo" or _main_thread_waits())
    return (str(active[-1]["profiling_name"]) if waits else None), recorded


def _main_thread_waits() -> bool:
    """Return whether the main thread is in torch's process group code or our collectives.

    The wait may be below other frames of torch, such as autograd or a dispatcher.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None and frame.f_code.co_filename == collectives.__file__:
        return True
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_filename.startswith(_GROUPS_OF_TORCH):
            return True
        frame = frame.f_back
    return False
