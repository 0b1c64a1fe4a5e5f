"""Cases for the tests of the GPU driver: success, out of memory, errors, aborts, hangs."""

import os
import time
from pathlib import Path
from typing import Any

import torch


def finish(note: str) -> dict[str, Any]:
    """Append a line to ``note`` and return a figure."""
    with Path(note).open("a") as file:
        file.write("ran\n")
    return {"figure": 1}


def exhaust_memory(note: str) -> dict[str, Any]:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nmore")


def fail(note: str) -> dict[str, Any]:
    raise ValueError("an unknown shape")


def abort(note: str) -> dict[str, Any]:
    os.abort()


def hang(note: str) -> dict[str, Any]:
    Path(note).write_text(str(os.getpid()))
    time.sleep(600)
    return {}
