"""What every benchmark says about the machine, and how the memory of one call is measured."""

import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def machine() -> dict[str, object]:
    """Describe this machine as results keep it."""
    return {"processor": processor(), "cores": os.cpu_count()}


def processor() -> str:
    """Name the CPU as the kernel does; ``platform`` knows only the architecture."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {platform.machine()}"


def peak_added_bytes(call: Callable[[], object]) -> int:
    """Measure how far resident memory rises during one call, at its highest.

    Memory that was freed before and not given back hides some of it: ask in a new process,
    see `apart`. Linux only.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = resident_bytes("VmHWM")
    call()
    return resident_bytes("VmHWM") - before


def resident_bytes(field: str, process: str = "self") -> int:
    """Read ``VmRSS`` or its high-water mark ``VmHWM`` of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values[field].split()[0]) * 1_024


def apart(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of a module in a process of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
