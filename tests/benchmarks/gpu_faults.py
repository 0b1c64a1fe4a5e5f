"""Cases for the driver's tests: what goes wrong on a machine that is lent for half an hour."""

import os
import time
from pathlib import Path
from typing import Any

import torch


def finds(note: str) -> dict[str, Any]:
    """Note that it ran, and find something."""
    with Path(note).open("a") as file:
        file.write("ran\n")
    return {"found": 1}


def runs_out(note: str) -> dict[str, Any]:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nmore")


def fails(note: str) -> dict[str, Any]:
    raise ValueError("a shape that nobody has")


def dies(note: str) -> dict[str, Any]:
    os.abort()


def hangs(note: str) -> dict[str, Any]:
    Path(note).write_text(str(os.getpid()))
    time.sleep(600)
    return {}
