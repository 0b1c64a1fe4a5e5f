"""The last collectives of this rank, from torch's flight recorder.

The recorder is a ring in memory, for NCCL and gloo alike. It is on where its size is in the
environment before the first process group is made:
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist

from components.distributed import collectives
from components.torch_internals.distributed import flight_record

_SIZE = "TORCH_FR_BUFFER_SIZE"
_GROUPS_OF_TORCH = str(Path(dist.__file__).parent)
_TORCH = str(Path(_GROUPS_OF_TORCH).parent)


def record_collectives(entries: int) -> None:
    """Keep the last ``entries`` of each rank, unless the environment says how many."""
    os.environ.setdefault(_SIZE, str(entries))


def last_collectives() -> tuple[str | None, dict[str, Any]]:
    """Return the collective that this rank waits in, if any, and all that are recorded.

    What is started is not always waited for: a receive that a pipeline has posted is not. On a
    CPU, where the thread that waits is the one that called, its stack tells. On other devices
    the host waits elsewhere.
    """
    recorded = _recorded()
    active = [entry for entry in recorded.get("entries", []) if not entry["retired"]]
    if not active:
        return None, recorded
    waits = dist.get_backend() != "gloo" or _main_thread_waits()
    return (str(active[-1]["profiling_name"]) if waits else None), recorded


def _recorded() -> dict[str, Any]:
    nccl = dist.is_initialized() and dist.get_backend() == "nccl"
    recorded: dict[str, Any] = json.loads(flight_record(of_nccl=nccl))
    return recorded


def _main_thread_waits() -> bool:
    """Tell whether the main thread has last called torch's code for groups, or such a wait.

    A wait may be some of torch's frames deep: under autograd, say, or a dispatcher. What was
    started to be waited for later is waited for in `exchange`.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is not None and frame.f_code.co_filename == collectives.__file__:
        return True
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_filename.startswith(_GROUPS_OF_TORCH):
            return True
        frame = frame.f_back
    return False
