"""What an action gives back, and the exit statuses that the command line promises."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class Status(IntEnum):
    """Exit statuses; under ``-m`` the highest of all points."""

    DONE = 0
    DOES_NOT_HOLD = 1
    WRONG_INPUT = 2
    STOPPED = 3
    FAULT = 4
    INTERRUPTED = 130
    READER_GONE = 141  # what a shell reports of a program that SIGPIPE ended
    TERMINATED = 143


@dataclass(frozen=True)
class ActionResult:
    """How one point ended, and the run folder that it left, if any."""

    status: Status = Status.DONE
    run: Path | None = None
