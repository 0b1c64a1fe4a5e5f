"""Fault injection: what a run does about a fault is seen before a machine asks for it.

A fault strikes one rank before one step, once in the life of a run, whatever starts again. Each
is a function named like its `fault`.
"""

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from components.checkpoint.metadata import newest_checkpoint
from components.config.schema import monitoring
from components.distributed.weight_shards import local
from components.errors import RecipeError
from components.run.event_log import ClockReading, EventLog

_LONG_SECONDS = 1_000_000
_MUTEX_BYTES = 64  # as glibc makes one, all zeros; more than any platform's needs


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a fault may touch of its rank."""

    checkpoints: Path  # the folder that the run saves into
    batch: Tensor  # of the step: (microbatches, sequences, length + 1)
    stages: Sequence[nn.Module]  # the rank's parts of the model


class FaultInjector:
    """Fire this ``rank``'s faults; it notes them itself, since the first may be struck."""

    def __init__(self, *, faults: Sequence[monitoring.Fault], folder: Path, rank: int) -> None:
        self._faults = [fault for fault in faults if fault.rank == rank]
        self._notes = folder / "rehearsed"
        self._journal = EventLog(file=folder / "journal.jsonl", writes=True, retry_seconds=0.0)

    def before_step(self, progress: ClockReading, reach: Reach) -> None:
        """Fire what is due before the step after ``progress``."""
        for fault in self._faults:
            if fault.step == progress.step + 1 and self._is_first_time(fault):
                cause, evidence = f"{fault.fault} was asked for", fault.model_dump(mode="json")
                self._journal.note("rehearsal", progress, cause, evidence)
                globals()[fault.fault](fault, reach)

    def _is_first_time(self, fault: monitoring.Fault) -> bool:
        """Note the fault on disk; whoever finds the note there leaves it be."""
        self._notes.mkdir(exist_ok=True)
        note = self._notes / f"{fault.fault}-rank-{fault.rank}-step-{fault.step}"
        try:
            with note.open("x") as stream:
                os.fsync(stream.fileno())
        except FileExistsError:
            return False
        return True


def kill(fault: monitoring.Kill, reach: Reach) -> None:
    """End this process by a signal that none can catch, as when its node is lost."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(fault: monitoring.HangFault, reach: Reach) -> None:
    """Sleep for days, or wait for ever without giving other threads of Python a turn."""
    if fault.how == "sleeps":
        time.sleep(_LONG_SECONDS)
    # Unlike `CDLL` it keeps the interpreter's lock; no signal ends the wait for a mutex.
    mutex, library = ctypes.create_string_buffer(_MUTEX_BYTES), ctypes.PyDLL(None)
    for _ in range(2):  # the second waits for the first
        library.pthread_mutex_lock(mutex)


def nan(fault: monitoring.Nan, reach: Reach) -> None:
    """Let the next pass through the rank's first stage come out as NaN."""

    def spoil(stage: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        handle.remove()
        return output * float("nan")

    handle = reach.stages[0].register_forward_hook(spoil)


def slow_rank(fault: monitoring.SlowRank, reach: Reach) -> None:
    """Burn time in every forward pass of the rank's first stage, as a device too hot does."""
    passes = fault.steps * len(reach.batch)

    def burn(stage: nn.Module, inputs: Any) -> None:
        nonlocal passes
        passes -= 1
        if passes <= 0:
            handle.remove()
        until = time.thread_time() + fault.seconds
        while time.thread_time() < until:
            pass

    handle = reach.stages[0].register_forward_pre_hook(burn)


def bit_flip(fault: monitoring.BitFlip, reach: Reach) -> None:
    """Flip a bit of the first number of the rank's first weight matrix."""
    weights = (weight for stage in reach.stages for weight in stage.parameters())
    matrix = next(weight for weight in weights if weight.dim() > 1)
    with torch.no_grad():
        there = local(matrix)
        width = torch.finfo(there.dtype).bits
        bits = there.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[width])
        bit = max(0, fault.bit + width - 32)
        bits.view(-1)[:1] ^= 1 << bit if bit < width - 1 else -(1 << bit)


def spike(fault: monitoring.Spike, reach: Reach) -> None:
    """Put the largest id of the step's batch, a rare one, in the place of all.

    Repeated n-grams in web text made OLMo's gradients leap (arXiv 2501.00656).
    """
    reach.batch.fill_(reach.batch.max())


def truncated_checkpoint(fault: monitoring.TruncatedCheckpoint, reach: Reach) -> None:
    """Cut the newest checkpoint; only a run that goes back or starts again reads it.

    Raises:
        RecipeError: there is no checkpoint yet.
    """
    truncate_newest(reach.checkpoints)


def files_gone(fault: monitoring.FilesGone, reach: Reach) -> None:
    """Hide the checkpoints' folder; it comes back whatever becomes of this rank."""
    take_away(reach.checkpoints, fault.seconds)


def full_disk(fault: monitoring.FullDisk, reach: Reach) -> None:
    """Limit this process's files: small ones can be written, checkpoints cannot for a while."""
    full = ExitStack()
    full.enter_context(fill_up(fault.free_bytes))
    room_again = threading.Timer(fault.seconds, full.close)
    room_again.daemon = True  # a run that ends does not wait for room
    room_again.start()


def truncate_newest(folder: Path) -> Path:
    """Cut the newest checkpoint's last file in half, and return that file.

    Raises:
        RecipeError: there is no checkpoint.
    """
    if (newest := newest_checkpoint(folder)) is None:
        problem = "has no checkpoint to damage"
        raise RecipeError(str(folder), problem, "inject the fault after the first one")
    *_, file = sorted(newest.glob("*.safetensors"))
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)
    return file


@contextmanager
def fill_up(most_bytes: int) -> Iterator[None]:
    """Let this process write no file beyond so many bytes, as where a quota is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def take_away(folder: Path, seconds: float) -> None:
    """Let a folder be gone for so long; a shell puts it back, which outlives this process."""
    hidden = folder.with_name(f".{folder.name}-taken-away")
    folder.rename(hidden)
    put_back = '(sleep "$1"; mv -T "$2" "$3") >/dev/null 2>&1 </dev/null &'
    words = ["sh", "-c", put_back, "sh", f"{seconds}", str(hidden), str(folder)]
    subprocess.run(words, check=True, start_new_session=True)
