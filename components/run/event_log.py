"""Event log of a run, ``journal.jsonl``: one event a line, with cause, evidence, node, job.

An event is written at once and synced: what a guard did must be known even if the machine goes
away in the next second. Measurements are in ``metrics.jsonl``.
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
from components.run.history import FILES, lines_from_end

# Counts while a machine sleeps. Darwin's monotonic clock does so, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def node_name(seen: Mapping[str, str]) -> str:
    """Return the node's name as the scheduler knows it, or else as the node calls itself."""
    return seen.get("SLURMD_NODENAME") or socket.gethostname()


def job_name(seen: Mapping[str, str]) -> str | None:
    """Return the job's id, ``ID_NUMBER`` for a task of Slurm's arrays; None outside of jobs."""
    if "SLURM_ARRAY_JOB_ID" in seen:
        return f"{seen['SLURM_ARRAY_JOB_ID']}_{seen['SLURM_ARRAY_TASK_ID']}"
    return seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID")


def run_time(run: Path) -> float:
    """Return the time of a new line of the run, in seconds since the epoch.

    It never goes back: readers order the lines by it. The clock of a node may be behind the
    clock that wrote the last line, and any clock may be set while a process runs.
    """
    return _seconds_at_boot(run) + time.clock_gettime(_CLOCK)


@cache
def _seconds_at_boot(run: Path) -> float:
    """Return the run's time at which this machine started."""
    times = [time.time()]
    for name in FILES:
        with suppress(RecipeError, OSError):  # whoever reads the file reports the damage
            times += [line["time"] for line in islice(lines_from_end(run / name), 1)]
    return max(times) - time.clock_gettime(_CLOCK)


# fmt: off
Kind = Literal[
    "preflight", "start", "resume", "stop", "end", "restart", "rewind", "job_end", "exclusion",
    "checkpoint", "damaged", "skip", "roll_back", "lower_lr", "relaunch", "changed_setting",
    "rehearsal", "hang", "slow_rank", "memory_growth", "replicas", "expert_bound", "branch",
    "merge",
]
# fmt: on


class ClockReading(Protocol):
    """Where a run is: `RunProgress`, or what else has a step and its tokens."""

    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...


@dataclass(kw_only=True)
class EventLog:
    """Append events to ``file``; with ``writes`` off, as on all ranks but one, do nothing.

    Several processes may write to one file: a line is one append. Where the disk is full or
    away an event waits, for ``retry_seconds`` unless the run was ``stopped``.
    """

    file: Path
    writes: bool
    retry_seconds: float
    stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._patience = Patience(seconds=self.retry_seconds, stopped=self.stopped)

    def note(
        self,
        kind: Kind,
        at: ClockReading,
        cause: str,
        evidence: Mapping[str, Any],
        *,
        seconds: float = 0.0,
    ) -> None:
        """Write one event; ``seconds`` is how long the run made no progress because of it.

        ``at`` is where the weights are once the event is over.

        Raises:
            RecipeError: the file cannot be written.
        """
        if not self.writes:
            return
        now = run_time(self.file.parent)
        place = {"kind": kind, "time": now, "step": at.step, "tokens": at.tokens}
        event = {**place, "cause": cause, "seconds": seconds, "evidence": dict(evidence)}
        self._patience(self.file, lambda: append_line(self.file, event, sync=True))


def append_line(file: Path, record: Mapping[str, Any], *, sync: bool) -> None:
    """Append one JSON line in one write; a line that a kill left half written is closed first.

    A number that is not finite is null there.

    With ``sync`` it is on the disk when this returns.

    Raises:
        OSError: there is no room for all of it, or another reason of the file system.
    """
    line = dump_json(record).encode() + b"\n"
    with file.open("ab+", buffering=0) as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        while line:  # where room ends within it, the next write says so
            line = line[stream.write(line) :]
        if sync:
            os.fsync(stream.fileno())
