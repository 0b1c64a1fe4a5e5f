"""Event log of a run, ``events.jsonl``: one event per line, with cause and evidence.

Each event is synced at once, so that a guard's action survives a failure of the machine.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from components.errors import RecipeError
from components.json_file import dump_json
from components.run.disk import Patience
from components.run.history import lines_from_end, log_files

# This clock also counts while a machine sleeps, as Darwin's monotonic clock does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def node_name(seen: Mapping[str, str]) -> str:
    """Return the scheduler's name of this node, or else its host name."""
    return seen.get("SLURMD_NODENAME") or socket.gethostname()


def job_name(seen: Mapping[str, str]) -> str | None:
    """Return the job id, ``ID_NUMBER`` for a Slurm array task; None outside of jobs."""
    if "SLURM_ARRAY_JOB_ID" in seen:
        return f"{seen['SLURM_ARRAY_JOB_ID']}_{seen['SLURM_ARRAY_TASK_ID']}"
    return seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID")


def run_time(run: Path) -> float:
    """Return the time of a new line of the run, in seconds since the epoch.

    The time never decreases, because readers sort lines by it. A node's clock may be behind the
    clock that wrote the last line, and any clock may be set while a process runs.
    """
    return _seconds_at_boot(run) + time.clock_gettime(_CLOCK)


@cache
def _seconds_at_boot(run: Path) -> float:
    """Return the run time at which this machine booted."""
    times = [time.time()]
    for file in log_files(run):
        with suppress(RecipeError, OSError):  # readers of the file report damage
            times += [line["time"] for line in islice(lines_from_end(file), 1)]
    return max(times) - time.clock_gettime(_CLOCK)


# fmt: off
EventKind = Literal[
    "preflight", "start", "resume", "stop", "end", "restart", "rewind", "job_end", "exclusion",
    "checkpoint", "damaged", "skip", "roll_back", "lower_lr", "relaunch", "changed_setting",
    "rehearsal", "hang", "slow_rank", "memory_growth", "replicas", "expert_overflow", "branch",
    "merge",
]
# fmt: on


class ClockReading(Protocol):
    """Position of a run: `RunProgress` or any object with a step and its tokens."""

    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@dataclass(kw_only=True)
class EventLog:
    """Append events to ``file``. Only one rank has ``writes`` set; the others write nothing.

    Several processes may write to one file, because each line is one append. If the disk is
    full or unavailable, writing is retried for ``retry_seconds`` or until ``stopped``.
    """

    file: Path
    writes: bool
    retry_seconds: float
    stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._patience = Patience(seconds=self.retry_seconds, stopped=self.stopped)

    def write_event(
        self,
        kind: EventKind,
        at: ClockReading,
        cause: str,
        evidence: Mapping[str, Any],
        *,
        seconds: float = 0.0,
    ) -> None:
        """Write one event. ``seconds`` is the time without progress that the event caused.

        ``at`` is the position of the weights after the event.
        """
        if not self.writes:
            return
        now = run_time(self.file.parent)
        place = {"kind": kind, "time": now, "step": at.step, "tokens": at.tokens}
        event = {**place, "cause": cause, "seconds": seconds, "evidence": dict(evidence)}
        self._patience(self.file, lambda: append_line(self.file, event, sync=True))


def append_line(file: Path, record: Mapping[str, Any], *, sync: bool) -> None:
    """Append one JSON line in one write, after terminating a line that a kill left incomplete.

    Non-finite numbers become null. ``sync`` syncs the line to disk.

    Raises:
        OSError: the disk has no space for the whole line, or the write fails otherwise.
    """
    line = dump_json(record).encode() + b"\n"
    with file.open("ab+", buffering=0) as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        while line:  # after a partial write, the next write raises
            line = line[stream.write(line) :]
        if sync:
            os.fsync(stream.fileno())
