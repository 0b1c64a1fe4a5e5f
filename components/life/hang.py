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
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

HUNG = 4  # the exit status of a process that its watchdog ended
HELD = "held.txt"
WAITING = "waits for other ranks in "
# Who waits for others ends last: its launcher should see first the rank that they wait for.
CULPRIT_SECONDS, HELD_SECONDS, WAITING_SECONDS, LAST_SECONDS = 0.5, 1.0, 1.5, 1.8

Collectives = Callable[[], tuple[str | None, dict[str, Any]]]


class Hang(RuntimeError):  # noqa: N818 - its name begins the message by which others know it
    """What an error file says of a rank that its watchdog ended; nobody raises it."""


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
        on_hang: Callable[[Hang], None],
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._collectives = collectives
        self._on_hang = on_hang
        folder.mkdir(parents=True, exist_ok=True)
        self._held: IO[str] = (folder / HELD).open("a")
        self._changed = threading.Condition()
        self._doing, self._seconds, self._deadline = "", 0.0, float("inf")
        self._is_over = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def expect(self, doing: str, seconds: float) -> None:
        """Allow ``seconds`` from now on for ``doing``."""
        with self._changed:
            earlier = time.monotonic() + seconds < self._deadline
            self._doing, self._seconds = doing, seconds
            self._deadline = time.monotonic() + seconds
            if earlier:
                self._changed.notify()
            faulthandler.dump_traceback_later(
                seconds + HELD_SECONDS, file=self._held, exit=True
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
            doing, seconds = self._doing, self._seconds
        # Whatever the lines below wait for, a file system that is gone too, this process ends.
        faulthandler.dump_traceback_later(LAST_SECONDS, file=self._held, exit=True)
        waits_in, collectives = self._collectives()
        self._report(doing, seconds, waits_in, collectives)
        time.sleep(CULPRIT_SECONDS if waits_in is None else WAITING_SECONDS)
        os._exit(HUNG)

    def _report(
        self, doing: str, seconds: float, waits_in: str | None, collectives: dict[str, Any]
    ) -> None:
        state = "is in no collective" if waits_in is None else WAITING + waits_in
        file = self._folder / doing.replace(" ", "-") / f"rank-{self._rank}.json"
        hang = Hang(f"{doing} took more than {seconds:g} s; the rank {state}; see {file}")
        sys.stderr.write(f"rank {self._rank}: {hang}\n")
        self._on_hang(hang)
        report = {
            "rank": self._rank,
            "node": socket.gethostname(),
            "doing": doing,
            "limit_seconds": seconds,
            "waits_in": waits_in,
            "stacks": stacks(),
            "collectives": collectives,
        }
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def stacks() -> list[str]:
    """Give the stack of every thread of this process, innermost call first."""
    with tempfile.TemporaryFile("w+") as stream:  # it writes to a file's descriptor
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read().splitlines()
