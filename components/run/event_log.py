"""Event log of a run, ``journal.jsonl``: one event a line, with cause, evidence, node, job.

Steps and held-out losses are measurements and live in ``metrics.jsonl``; here is what happened
to the run. An event is one line, written at once and synced: what a guard did must be known
even if the machine goes away in the next second.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from components.run.disk import Patience


def node_name(seen: Mapping[str, str]) -> str:
    """Return the node's name as the scheduler knows it, or else as the node calls itself."""
    return seen.get("SLURMD_NODENAME") or socket.gethostname()


def job_name(seen: Mapping[str, str]) -> str | None:
    """Return the job's id, ``ID_NUMBER`` for a task of Slurm's arrays; None outside of jobs."""
    if "SLURM_ARRAY_JOB_ID" in seen:
        return f"{seen['SLURM_ARRAY_JOB_ID']}_{seen['SLURM_ARRAY_TASK_ID']}"
    return seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID")


Kind = Literal[
    "preflight",
    "start",
    "resume",
    "checkpoint",
    "damaged",
    "skip",
    "roll_back",
    "lower_lr",
    "restart",
    "exclusion",
    "job_end",
    "hang",
    "slow_rank",
    "memory_growth",
    "replicas",
    "changed_setting",
    "rehearsal",
    "stop",
    "end",
]


class EventLog:
    """Append events to ``file``; with ``writes`` off, as on all ranks but one, do nothing.

    Several processes may write to one file: a line is one append. Where the disk is full or
    away an event waits, for ``retry_seconds`` unless the run was ``stopped``.
    """

    def __init__(
        self,
        *,
        file: Path,
        writes: bool,
        retry_seconds: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file = file
        self._patience = Patience(seconds=retry_seconds, stopped=stopped)
        self._writes = writes

    def note(
        self,
        kind: Kind,
        *,
        step: int,
        tokens: int,
        cause: str,
        seconds: float,
        evidence: Mapping[str, Any],
    ) -> None:
        """Write one event; ``seconds`` is how long the run made no progress because of it.

        ``step`` and ``tokens`` are those of the weights once the event is over.

        Raises:
            RecipeError: the file cannot be written.
        """
        if not self._writes:
            return
        event = {
            "kind": kind,
            "time": time.time(),
            "step": step,
            "tokens": tokens,
            "cause": cause,
            "seconds": seconds,
            "evidence": dict(evidence),
        }
        self._patience(self._file, lambda: append_line(self._file, event, sync=True))


def append_line(file: Path, record: Mapping[str, Any], *, sync: bool) -> None:
    """Append one JSON line in one write; a line that a kill left half written is closed first.

    With ``sync`` it is on the disk when this returns.

    Raises:
        OSError: there is no room for all of it, or another reason of the file system.
    """
    line = json.dumps(record).encode() + b"\n"
    with file.open("ab+", buffering=0) as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        while line:  # where room ends within it, the next write says so
            line = line[stream.write(line) :]
        if sync:
            os.fsync(stream.fileno())
