"""Profile of the steps in a trace, the data of ``profile/rank-N.json``, and host waits.

A host that asks a device for a number waits until all before is done. On a device these are
calls of its driver. On a CPU nothing waits, but the operators that would are in the trace;
what copies to the host without one (``tolist``, ``cpu()``) shows on a device alone.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from components.config.schema.cluster import Hardware, Machine
from components.profiling.counts import count
from components.profiling.parts import PARTS, CallPlace, places_of
from components.profiling.timeline import kernels_of, times_of, total_of
from components.profiling.trace import Trace, TraceEvent

ON_PURPOSE = "profile waits"  # the name of the range in which a profile waits for the device
_OPERATORS = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"),
    *("aten::_unique2", "aten::unique_dim", "aten::repeat_interleave"),
}
_RUNTIME = re.compile(
    "cuda(Stream|Device|Event)Synchronize|cu(Stream|Ctx|Event)Synchronize|cudaMemcpy"
    "|ze(CommandQueueSynchronize|FenceHostSynchronize|EventHostSynchronize)"
)
_OURS = re.compile(r"((?:components|command)/\S+\.py\(\d+\): .*)")


Tree = dict[str, Any]


def waits_of(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> list[Tree]:
    """List calls that wait in the steps of a trace, or would on a device, the longest first.

    ``line`` is where Python called it, if the trace has stacks; ``times`` are those a step.
    """
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    waits = _waits if trace.device else _would_wait
    for event in trace.main:
        place = places[event]
        if place.in_step and waits(event):
            key = (_call(event), place.part, place.direction, _line(trace, event))
            found[key].append(event.end - event.begin)
    steps = len(trace.steps)
    waiting = [
        dict(zip(("call", "part", "direction", "line"), key, strict=True))
        | {"times": len(lengths) / steps, "seconds": sum(lengths) / 1e9 / steps}
        for key, lengths in found.items()
    ]
    return sorted(waiting, key=lambda wait: -wait["seconds"])


def _waits(event: TraceEvent) -> bool:
    on_purpose = any(above.name == ON_PURPOSE for above in event.callers())
    return event.is_runtime and _RUNTIME.fullmatch(event.name) is not None and not on_purpose


def _would_wait(event: TraceEvent) -> bool:
    within = any(above.name in _OPERATORS for above in event.callers())
    return event.name in _OPERATORS and not within


def _call(event: TraceEvent) -> str:
    """Name a call of a driver with the operator that makes it."""
    operators = (above.name for above in event.callers() if above.category == "cpu_op")
    inside = next(operators, "") if event.is_runtime else ""
    return f"{event.name} in {inside}" if inside else event.name


def _line(trace: Trace, event: TraceEvent) -> str:
    """Name the innermost line of ours that led here; a trace without stacks has none."""
    frame = trace.frame_at(event.begin)
    for one in () if frame is None else (frame, *frame.callers()):
        if ours := _OURS.search(one.name):
            return ours[1]
    return ""


_CONVENTIONS = {
    "seconds": "of one step, the mean over the steps; the parts add up to the step",
    "flops": "of one step; products and attention, the whole of its matrix",
    "bytes": "each input read once, each output written once",
    "product_seconds": "of the operators that are counted in flops, in whole",
    "limit_flops_per_second": "the lower of the profile's gemm_teraflops (peak_teraflops "
    "where it has none) and its memory bandwidth times the intensity",
}


def profile_of(trace: Trace, *, machine: Machine, dtype: str) -> Tree:
    """Sum a trace up: times by part, products against the ``machine`` in ``dtype``, waits."""
    places = places_of(trace)
    steps = len(trace.steps)
    times = times_of(trace, places)
    rates = _rates(machine, dtype)

    def seconds_of(part: str) -> dict[str, float]:
        # In all, and those that are the model's by direction.
        by_direction = {d: ns / 1e9 / steps for (p, d), ns in times.items() if p == part}
        named = {f"{d}_seconds": s for d, s in sorted(by_direction.items()) if d}
        return {"seconds": sum(by_direction.values()), **named}

    return {
        "format": 1,
        "conventions": _CONVENTIONS,
        "steps": trace.steps,
        "clock": "device" if trace.device else "main thread",
        "step_seconds": total_of(trace, places) / 1e9 / steps,
        "parts": {part: seconds_of(part) for part in PARTS},
        "machine": rates,
        "products": _products(trace, places, rates),
        "waits": waits_of(trace, places),
    }


def _products(
    trace: Trace, places: Mapping[TraceEvent, CallPlace], rates: Tree | None
) -> dict[str, Tree]:
    on_device: Counter[TraceEvent | None] = Counter()  # of the kernels that each one started
    for kernel, place in kernels_of(trace, places):
        on_device[place.counted] += kernel.end - kernel.begin
    flops, size, nanoseconds = Counter[str](), Counter[str](), Counter[str]()
    for event, place in places.items():
        if place.counted is event and place.in_step:
            computed, moved = count(event)
            flops[place.part] += computed
            size[place.part] += moved
            lasted = on_device[event] if trace.device else event.end - event.begin
            nanoseconds[place.part] += lasted
    steps = len(trace.steps)
    return {
        part: _roofline(flops[part], size[part], nanoseconds[part], steps, rates)
        for part in PARTS
        if part in flops
    }


def _rates(machine: Machine, dtype: str) -> Tree | None:
    """Take from a cluster's profile what a roofline needs; None where it has no figures."""
    if not isinstance(machine, Hardware):
        return None
    peak = machine.peak_teraflops.get(dtype)
    gemm = machine.gemm_teraflops.get(dtype, peak)
    return {
        "device": machine.device,
        "dtype": dtype,
        "peak_flops_per_second": None if peak is None else peak * 1e12,
        "gemm_flops_per_second": None if gemm is None else gemm * 1e12,
        "memory_bytes_per_second": machine.memory_gigabytes_per_second * 1e9,
    }


def _roofline(flops: int, size: int, nanoseconds: int, steps: int, rates: Tree | None) -> Tree:
    """Place products below the machine's roof (Williams et al. 2009, CACM 52(4), p. 65)."""
    seconds = nanoseconds / 1e9
    intensity = flops / size if size else 0.0  # of no rows at all
    found: Tree = {
        "flops": flops / steps,
        "bytes": size / steps,
        "flops_per_byte": intensity,
        "product_seconds": seconds / steps,
        "flops_per_second": flops / seconds if seconds else None,
    }
    if rates is None or rates["gemm_flops_per_second"] is None or not seconds or not flops:
        return found
    limit = min(rates["gemm_flops_per_second"], rates["memory_bytes_per_second"] * intensity)
    return found | {"limit_flops_per_second": limit, "limit_fraction": flops / seconds / limit}
