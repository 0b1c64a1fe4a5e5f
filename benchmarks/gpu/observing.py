"""What is looked at around steps: seconds, energy, graphs, kernels.

Seconds are a device's own, by its events; a CPU has a clock instead.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from components.energy.counters import Meter
from components.torch_internals.operators import count_graphs
from components.train.callbacks.energy_monitor import device_source

MOST_KERNELS = 25
Found = dict[str, Any]
Step = Callable[[], Tensor]


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Time a call by the device's own events, from an idle device to the end of its work."""
    if device.type == "cpu":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    module = torch.get_device_module(device.type)
    first, last = (module.Event(enable_timing=True) for _ in range(2))
    module.synchronize(device)
    first.record()
    call()
    last.record()
    module.synchronize(device)
    return float(first.elapsed_time(last)) / 1_000


def take_steps(step: Step, device: torch.device, *, warmup: int, timed: int) -> Found:
    """Take steps and say of the timed ones how long they took, and of what energy.

    Graphs that torch's compiler made after the warm-up are recompiles.
    """
    losses = [step() for _ in range(warmup)]
    made = count_graphs()
    meter = meter_of(device)
    seconds = []
    for _ in range(timed):
        seconds.append(seconds_of(lambda: losses.append(step()), device))
    counted = meter.count(time.monotonic())
    return {
        "step_seconds": median(seconds),
        "seconds": seconds,
        "losses": [float(loss) for loss in losses],
        "device_joules": counted.joules if counted.is_whole and counted.joules else None,
        "graphs": count_graphs(),
        "recompiles": count_graphs() - made,
    }


def meter_of(device: torch.device) -> Meter:
    """Start counting the energy of a device, where something counts it."""
    source = device_source(device, rank=0, ranks=1, per_card=1, sysfs=Path("/sys"))
    return Meter(counters=source.counters, units=source.units, now=time.monotonic())


def kernels_of(step: Step, device: torch.device) -> list[Found]:
    """Profile one step: its longest kernels, on a CPU its operators, all calls of one together.

    ``share`` is of the time of all of them.
    """
    kinds = [ProfilerActivity.CPU]
    if device.type != "cpu":
        kinds.append(getattr(ProfilerActivity, device.type.upper()))
    with profile(activities=kinds, acc_events=True) as seen:
        step()
    on_host = device.type == "cpu"
    rows = [
        (one.key, one.count, one.self_cpu_time_total if on_host else one.self_device_time_total)
        for one in seen.key_averages()
        if one.device_type.name == device.type.upper() and not one.is_user_annotation
    ]
    return table_of(rows)


def table_of(rows: Sequence[tuple[str, int, float]]) -> list[Found]:
    """Lay out (name, calls, microseconds), the longest first."""
    whole = sum(row[2] for row in rows) or 1.0
    longest = sorted(rows, key=lambda row: row[2], reverse=True)[:MOST_KERNELS]
    return [
        {"name": name, "calls": calls, "seconds": micro / 1e6, "share": micro / whole}
        for name, calls, micro in longest
    ]
