"""The device of a case, and measurements of steps: seconds, energy, graphs, kernels.

Seconds come from device events, and on a CPU from the clock.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cases import CPU, ResultFields
from components.distributed.devices import device_type, peak_memory_bytes
from components.energy.counters import Meter
from components.torch_internals.operators import count_graphs
from components.train.callbacks.energy_monitor import device_source

MOST_KERNELS = 25
TensorStep = Callable[[], Tensor]


def this_device() -> torch.device:
    """Return the first device of the kind that torch detects."""
    kind = device_type("auto")
    return torch.device(kind) if kind == "cpu" else torch.device(kind, 0)


def device_name(device: torch.device) -> str:
    """Return the name of the device from its driver."""
    if device.type == "cpu":
        return CPU
    return str(torch.get_device_module(device.type).get_device_name(device))


def memory_gib(device: torch.device) -> float:
    """Return the memory size of a device; infinite for a CPU."""
    if device.type == "cpu":
        return float("inf")
    properties = torch.get_device_module(device.type).get_device_properties(device)
    return float(properties.total_memory / 2**30)


def peak_memory(device: torch.device) -> dict[str, Any]:
    """Return the peaks of allocated and reserved memory; for a CPU, the peak of the process."""
    reserved = None
    if device.type != "cpu":
        reserved = torch.get_device_module(device.type).max_memory_reserved(device)
    return {"peak_bytes": peak_memory_bytes(device), "reserved_bytes": reserved}


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Time a call by device events, from an idle device until the device is idle again."""
    if device.type == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    module = torch.get_device_module(device.type)
    first, last = (module.Event(enable_timing=True) for _ in range(2))
    module.synchronize(device)
    first.record()
    call()
    last.record()
    module.synchronize(device)
    return float(first.elapsed_time(last)) / 1_000


def take_steps(
    step: TensorStep, device: torch.device, *, warmup: int, timed: int
) -> ResultFields:
    """Take steps; return seconds, losses and energy of the timed steps.

    Graphs that torch compiles after the warm-up count as recompiles.
    """
    losses = [step() for _ in range(warmup)]
    warmup_graphs = count_graphs()
    source = device_source(device, rank=0, ranks=1, per_card=1, sysfs=Path("/sys"))
    meter = Meter(counters=source.counters, units=source.units, now=time.monotonic())
    seconds = []
    for _ in range(timed):
        seconds.append(time_call(lambda: losses.append(step()), device))
    energy = meter.measure_energy(time.monotonic())
    return {
        "step_seconds": median(seconds),
        "seconds": seconds,
        "losses": [float(loss) for loss in losses],
        "device_joules": energy.joules if energy.is_whole and energy.joules else None,
        "graphs": count_graphs(),
        "recompiles": count_graphs() - warmup_graphs,
    }


def profile_kernels(step: TensorStep, device: torch.device) -> list[ResultFields]:
    """Profile one step; return the longest kernels (on a CPU the longest operators).

    Each row sums the calls of a kernel; ``share`` is its part of the time of all kernels.
    """
    kinds = [ProfilerActivity.CPU]
    if device.type != "cpu":
        kinds.append(getattr(ProfilerActivity, device.type.upper()))
    with profile(activities=kinds, acc_events=True) as events:
        step()
    on_host = device.type == "cpu"
    rows = [
        (row.key, row.count, row.self_cpu_time_total if on_host else row.self_device_time_total)
        for row in events.key_averages()
        if row.device_type.name == device.type.upper() and not row.is_user_annotation
    ]
    return kernel_table(rows)


def kernel_table(rows: Sequence[tuple[str, int, float]]) -> list[ResultFields]:
    """Turn (name, calls, microseconds) into table rows, the longest first."""
    total = sum(row[2] for row in rows) or 1.0
    longest = sorted(rows, key=lambda row: row[2], reverse=True)[:MOST_KERNELS]
    return [
        {"name": name, "calls": calls, "seconds": micro / 1e6, "share": micro / total}
        for name, calls, micro in longest
    ]
