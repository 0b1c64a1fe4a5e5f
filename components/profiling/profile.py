"""What a trace says of the steps in it, as the data of ``profile/rank-N.json``."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from components.profiling.counts import count
from components.profiling.parts import PARTS, Place, places_of
from components.profiling.timeline import (
    Times,
    launches_of,
    place_of_kernel,
    times_of,
    total_of,
)
from components.profiling.trace import Event, Trace
from components.profiling.waits import waits_of
from components.spec.hardware import Hardware, Machine

FORMAT = 1
CONVENTIONS = {
    "seconds": "of one step, the mean over the steps; the parts add up to the step",
    "flops": "of one step; products and attention, the whole of its matrix",
    "bytes": "each input read once, each output written once",
    "product_seconds": "of the operators that are counted in flops, in whole",
    "limit_flops_per_second": "the lower of the profile's gemm_teraflops (peak_teraflops "
    "where it has none) and its memory bandwidth times the intensity",
}
Tree = dict[str, Any]


@dataclass
class _Sums:
    flops: int = 0
    bytes: int = 0
    nanoseconds: int = 0


def profile_of(trace: Trace, *, machine: Machine, dtype: str) -> Tree:
    """Sum a trace up: times by part, products against the ``machine`` in ``dtype``, waits."""
    places = places_of(trace)
    steps = len(trace.steps)
    times = times_of(trace, places)
    rates = _rates(machine, dtype)
    return {
        "format": FORMAT,
        "conventions": CONVENTIONS,
        "steps": trace.steps,
        "clock": "device" if trace.device else "main thread",
        "step_seconds": total_of(trace, places) / 1e9 / steps,
        "parts": {part: _directions(times, part, steps) for part in PARTS},
        "machine": rates,
        "products": {
            part: _roofline(sums, steps, rates)
            for part, sums in _products(trace, places).items()
        },
        "waits": [asdict(wait) for wait in waits_of(trace, places)],
    }


def _directions(times: Times, part: str, steps: int) -> dict[str, float]:
    """Give seconds a step: in all, and those that are the model's by direction."""
    by_direction = {d: ns / 1e9 / steps for (p, d), ns in times.items() if p == part}
    named = {f"{d}_seconds": s for d, s in sorted(by_direction.items()) if d}
    return {"seconds": sum(by_direction.values()), **named}


def _products(trace: Trace, places: Mapping[Event, Place]) -> dict[str, _Sums]:
    """Add up the operators that are counted, part by part."""
    lasted = _seconds_on_device(trace, places) if trace.device else None
    sums: dict[str, _Sums] = defaultdict(_Sums)
    for event, place in places.items():
        if place.counted is event and place.in_step:
            one, here = count(event), sums[place.part]
            here.flops += one.flops
            here.bytes += one.bytes
            here.nanoseconds += lasted[event] if lasted else event.end - event.begin
    return {part: sums[part] for part in PARTS if part in sums}


def _seconds_on_device(trace: Trace, places: Mapping[Event, Place]) -> dict[Event, int]:
    """Add up the nanoseconds of the kernels that each counted operator started."""
    launches = launches_of(trace)
    lasted: dict[Event, int] = defaultdict(int)
    for kernel in trace.device:
        counted = place_of_kernel(kernel, launches, places).counted
        if counted is not None:
            lasted[counted] += kernel.end - kernel.begin
    return lasted


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


def _roofline(sums: _Sums, steps: int, rates: Tree | None) -> Tree:
    """Place products below the machine's roof (Williams et al. 2009, CACM 52(4), p. 65)."""
    seconds = sums.nanoseconds / 1e9
    intensity = sums.flops / sums.bytes if sums.bytes else 0.0  # of no rows at all
    found: Tree = {
        "flops": sums.flops / steps,
        "bytes": sums.bytes / steps,
        "flops_per_byte": intensity,
        "product_seconds": seconds / steps,
        "flops_per_second": sums.flops / seconds if seconds else None,
    }
    if rates is None or rates["gemm_flops_per_second"] is None:
        return found
    if not seconds or not sums.flops:
        return found
    limit = min(rates["gemm_flops_per_second"], rates["memory_bytes_per_second"] * intensity)
    return found | {
        "limit_flops_per_second": limit,
        "limit_fraction": sums.flops / seconds / limit,
    }
