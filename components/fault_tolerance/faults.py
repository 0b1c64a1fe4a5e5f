"""Fault injection: each fault is a function with the name in the field `fault`.

A fault hits one rank before one step, once in a run, even if the run restarts.
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
from components.distributed.weight_shards import get_local_part
from components.errors import RecipeError
from components.run.event_log import ClockReading, EventLog
from components.run.history import events_file

_LONG_SECONDS = 1_000_000
_MUTEX_BYTES = 64  # glibc initializes a mutex with zeros; 64 is enough on every platform


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The parts of a rank that a fault may change."""

    checkpoints: Path  # the folder that the run saves into
    batch: Tensor  # (microbatches, sequences, length + 1)
    stages: Sequence[nn.Module]  # the rank's parts of the model


class FaultInjector:
    """Inject this ``rank``'s faults. Each rank logs its own, since rank 0 may be hit."""

    def __init__(self, *, faults: Sequence[monitoring.Fault], folder: Path, rank: int) -> None:
        self._faults = [fault for fault in faults if fault.rank == rank]
        self._notes = folder / "rehearsed"
        self._event_log = EventLog(file=events_file(folder), writes=True, retry_seconds=0.0)

    def before_step(self, progress: ClockReading, reach: Reach) -> None:
        """Inject the faults that are due before the step after ``progress``."""
        for fault in self._faults:
            if fault.step == progress.step + 1 and self._is_first_time(fault):
                cause, evidence = f"{fault.fault} was requested", fault.model_dump(mode="json")
                self._event_log.write_event("rehearsal", progress, cause, evidence)
                globals()[fault.fault](fault, reach)

    def _is_first_time(self, fault: monitoring.Fault) -> bool:
        """Record the fault on disk; return False if it was recorded before."""
        self._notes.mkdir(exist_ok=True)
        note = self._notes / f"{fault.fault}-rank-{fault.rank}-step-{fault.step}"
        try:
            with note.open("x") as stream:
                os.fsync(stream.fileno())
        except FileExistsError:
            return False
        return True


def kill(fault: monitoring.Fault, reach: Reach) -> None:
    """Kill this process with SIGKILL, which cannot be caught, as if its node were lost."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(fault: monitoring.HangFault, reach: Reach) -> None:
    """Sleep for days, or block forever while holding the GIL."""
    if fault.how == "sleeps":
        time.sleep(_LONG_SECONDS)
    # `PyDLL`, unlike `CDLL`, keeps the GIL. No signal ends the wait for a mutex.
    mutex, library = ctypes.create_string_buffer(_MUTEX_BYTES), ctypes.PyDLL(None)
    for _ in range(2):  # the second lock blocks
        library.pthread_mutex_lock(mutex)


def nan(fault: monitoring.Fault, reach: Reach) -> None:
    """Replace the next output of the rank's first stage with NaN."""

    def replace_output(stage: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        handle.remove()
        return output * float("nan")

    handle = reach.stages[0].register_forward_hook(replace_output)


def slow_rank(fault: monitoring.SlowRank, reach: Reach) -> None:
    """Burn CPU time in the forward passes of the rank's first stage, like an overheated device.

    The delay is ``fault.seconds`` for each microbatch of ``fault.steps`` steps.
    """
    passes = fault.steps * len(reach.batch)

    def burn_time(stage: nn.Module, inputs: Any) -> None:
        nonlocal passes
        passes -= 1
        if passes <= 0:
            handle.remove()
        until = time.thread_time() + fault.seconds
        while time.thread_time() < until:
            pass

    handle = reach.stages[0].register_forward_pre_hook(burn_time)


def bit_flip(fault: monitoring.BitFlip, reach: Reach) -> None:
    """Flip a bit in the first element of the rank's first weight matrix."""
    weights = (weight for stage in reach.stages for weight in stage.parameters())
    matrix = next(weight for weight in weights if weight.dim() > 1)
    with torch.no_grad():
        shard = get_local_part(matrix)
        width = torch.finfo(shard.dtype).bits
        bits = shard.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[width])
        bit = max(0, fault.bit + width - 32)
        bits.view(-1)[:1] ^= 1 << bit if bit < width - 1 else -(1 << bit)


def spike(fault: monitoring.Fault, reach: Reach) -> None:
    """Replace all tokens of the batch with its largest (and rare) id, to cause a loss spike.

    Repeated n-grams in web text caused gradient spikes in OLMo (arXiv 2501.00656).
    """
    reach.batch.fill_(reach.batch.max())


def truncated_checkpoint(fault: monitoring.Fault, reach: Reach) -> None:
    """Truncate the newest checkpoint. The run detects it only on a rollback or a restart."""
    truncate_newest(reach.checkpoints)


def files_gone(fault: monitoring.FilesGone, reach: Reach) -> None:
    """Hide the checkpoint folder for a while. It comes back even if this rank ends."""
    take_away(reach.checkpoints, fault.seconds)


def full_disk(fault: monitoring.FullDisk, reach: Reach) -> None:
    """Limit this process's file size for a while: small files fit, checkpoints do not."""
    full = ExitStack()
    full.enter_context(fill_up(fault.free_bytes))
    room_again = threading.Timer(fault.seconds, full.close)
    room_again.daemon = True  # the process can exit before the limit ends
    room_again.start()


def truncate_newest(folder: Path) -> Path:
    """Truncate the last file of the newest checkpoint to half its size, and return its path."""
    if (newest := newest_checkpoint(folder)) is None:
        problem = "has no checkpoint to damage"
        raise RecipeError(str(folder), problem, "inject the fault after the first checkpoint")
    *_, file = sorted(newest.glob("*.safetensors"))
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)
    return file


@contextmanager
def fill_up(most_bytes: int) -> Iterator[None]:
    """Limit this process's files to ``most_bytes`` each, like an exhausted quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def take_away(folder: Path, seconds: float) -> None:
    """Rename a folder for ``seconds``. A shell, which outlives this process, restores it."""
    hidden = folder.with_name(f".{folder.name}-taken-away")
    folder.rename(hidden)
    put_back = '(sleep "$1"; mv -T "$2" "$3") >/dev/null 2>&1 </dev/null &'
    command = ["sh", "-c", put_back, "sh", f"{seconds}", str(hidden), str(folder)]
    subprocess.run(command, check=True, start_new_session=True)
