"""A process that makes no progress ends itself, and says before where it stood.

Whoever works says before each piece of work how long it may take. When that time is over a
thread of this process writes down every thread's stack and the last collectives, and ends it.
A thread of Python needs the interpreter's lock. Where the lock is held as well (a call into C
that never returns) a timer of `faulthandler`, which is a thread in C and needs no lock, writes
the stacks and ends the process a moment later.
"""

import faulthandler
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from components.run.event_log import node_name
from components.terminal import say

HUNG = 4  # the exit status of a process that its watchdog ended
HELD = "held.txt"
WAITING = "waits for other ranks in "
# After the limit. Who waits for others ends last: its launcher should see first the rank that
# they wait for. What the thread writes may wait for a file system: it, too, has a limit.
CULPRIT_SECONDS, HELD_SECONDS, WAITING_SECONDS, LAST_SECONDS = 0.5, 1.0, 1.5, 1.8

Collectives = Callable[[], tuple[str | None, dict[str, Any]]]


@dataclass(frozen=True)
class WatchedWork:
    """A piece of work, after ``step`` and ``tokens``, and how many seconds it may take."""

    name: str
    step: int
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class HangState:
    """What a rank says of itself at the limit; ``waits_in`` names a collective."""

    rank: int
    node: str
    work: WatchedWork
    waits_in: str | None
    file: Path

    def __str__(self) -> str:
        state = "is in no collective" if self.waits_in is None else WAITING + self.waits_in
        return (
            f"{self.work.name} took more than {self.work.seconds:g} s; rank {self.rank} on "
            f"{self.node} {state}; its stacks are in {self.file}"
        )


class HangWatch:
    """Watch this process; ``collectives`` gives what it waits in, if anything, and the last.

    Reports go below ``folder``, a folder for each piece of work that hung. What a process that
    holds the lock can still write goes to one file there that all ranks share.
    """

    def __init__(
        self,
        *,
        folder: Path,
        rank: int,
        collectives: Collectives,
        on_hang: Callable[[HangState], None],
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._collectives = collectives
        self._on_hang = on_hang
        folder.mkdir(parents=True, exist_ok=True)
        self._held: IO[str] = (folder / HELD).open("a")
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
                work.seconds + HELD_SECONDS, file=self._held, exit=True
            )

    def stop(self) -> None:
        """Watch no longer."""
        with self._changed:
            self._is_over = True
            faulthandler.cancel_dump_traceback_later()
            self._changed.notify()
        self._held.close()

    def _watch(self) -> None:
        with self._changed:
            while (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(None if left == float("inf") else left)
                if self._is_over:
                    return
            work = self._work
        # Whatever the lines below wait for, a file system that is gone too, this process ends.
        faulthandler.dump_traceback_later(LAST_SECONDS, file=self._held, exit=True)
        waits_in, collectives = self._collectives()
        report = HangState(
            rank=self._rank,
            node=node_name(os.environ),
            work=work,
            waits_in=waits_in,
            file=self._folder / work.name.replace(" ", "-") / f"rank-{self._rank}.json",
        )
        say(str(report))
        _write(report, collectives)
        self._on_hang(report)
        time.sleep(CULPRIT_SECONDS if waits_in is None else WAITING_SECONDS)
        os._exit(HUNG)


def _write(report: HangState, collectives: dict[str, Any]) -> None:
    tree = {
        "rank": report.rank,
        "node": report.node,
        "work": report.work.name,
        "limit_seconds": report.work.seconds,
        "waits_in": report.waits_in,
        "stacks": stacks(),
        "collectives": collectives,
    }
    report.file.parent.mkdir(exist_ok=True)
    report.file.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")


def stacks() -> list[str]:
    """Give the stack of every thread of this process, innermost call first."""
    with tempfile.TemporaryFile("w+") as stream:  # it writes to a file's descriptor
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read().splitlines()
