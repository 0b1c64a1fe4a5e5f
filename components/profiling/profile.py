"""Profile of the steps in a trace: the data of ``profile/rank-N.json``."""

from typing import Any

from components.profiling.parts import PARTS, places_of
from components.profiling.timeline import times_of, total_of
from components.profiling.trace import Trace


def profile_of(trace: Trace) -> dict[str, Any]:
    """Return the mean seconds of a step by part, and by direction for parts of the model."""
    places = places_of(trace)
    steps = len(trace.step_numbers)
    times = times_of(trace, places)

    def seconds_of(part: str) -> dict[str, float]:
        by_direction = {d: ns / 1e9 / steps for (p, d), ns in times.items() if p == part}
        named = {f"{d}_seconds": s for d, s in sorted(by_direction.items()) if d}
        return {"seconds": sum(by_direction.values()), **named}

    return {
        "format": 2,
        "conventions": {
            "seconds": "mean per step over the steps; the parts add up to the step"
        },
        "steps": trace.step_numbers,
        "clock": "device" if trace.device else "main thread",
        "step_seconds": total_of(trace, places) / 1e9 / steps,
        "parts": {part: seconds_of(part) for part in PARTS},
    }
