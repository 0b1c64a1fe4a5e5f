"""The machine of a benchmark; time and memory of function calls."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Returned = TypeVar("Returned")
SecondsByName = dict[str, list[float]]


def describe_machine() -> dict[str, object]:
    """Return the processor and the number of cores, as results store them."""
    return {"processor": cpu_name(), "cores": os.cpu_count()}


def cpu_name() -> str:
    """Return the name of the CPU from the kernel, and the architecture."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {platform.machine()}"


def peak_added_bytes(call: Callable[[], object]) -> int:
    """Measure the peak increase of resident memory during one call. Linux only.

    Memory that the process freed earlier hides a part of the increase, so measure in a new
    process (`call_in_process`).
    """
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = resident_bytes("VmHWM")
    call()
    return resident_bytes("VmHWM") - before


def resident_bytes(field: str, process: str = "self") -> int:
    """Read ``VmRSS`` of a process, or its high-water mark ``VmHWM``."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values[field].split()[0]) * 1_024


def call_in_process(function: Callable[..., Returned], *arguments: object) -> Returned:
    """Call a function of a module in a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def medians_of(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each list."""
    return {name: statistics.median(listed) for name, listed in values.items()}


def time_in_turns(
    calls: Mapping[str, Callable[[int], Returned]],
    *,
    warmup: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[SecondsByName, list[dict[str, Returned]]]:
    """Time each call once per round; return the seconds and the results of all rounds.

    A call gets the number of its round. Warm-up is not timed. The order alternates.
    """
    seconds: SecondsByName = {name: [] for name in calls}
    results = []
    for index in range(warmup + rounds):
        returned = {}
        for name in sorted(calls, reverse=bool(index % 2)):
            start = clock()
            returned[name] = calls[name](index)
            if index >= warmup:
                seconds[name].append(clock() - start)
        results.append(returned)
    return seconds, results
