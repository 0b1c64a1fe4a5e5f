"""Where the host waits for its device inside a step, or would on a device.

A host that asks a device for a number waits until all that it asked before is done, and until
it has asked for more the device has nothing to do. On a device these are calls of its driver.
On a CPU nothing waits, but the operators that would are in the trace. What copies to the host
without one of them (``tolist``, ``cpu()``) shows on a device alone.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from components.profiling.parts import Place
from components.profiling.trace import Event, Trace

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


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A call that waits, how often a step makes it, and its seconds a step.

    ``line`` is where Python called it, if the trace has stacks.
    """

    call: str
    part: str
    direction: str
    line: str
    times: float
    seconds: float


def waits_of(trace: Trace, places: Mapping[Event, Place]) -> list[Wait]:
    """List what waits in the steps of a trace, the longest first."""
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for event in _waiting(trace, places):
        place = places[event]
        key = (_call(event), place.part, place.direction, _line(trace, event))
        found[key].append(event.end - event.begin)
    steps = len(trace.steps)
    waits = [
        Wait(
            call=call,
            part=part,
            direction=direction,
            line=line,
            times=len(lengths) / steps,
            seconds=sum(lengths) / 1e9 / steps,
        )
        for (call, part, direction, line), lengths in found.items()
    ]
    return sorted(waits, key=lambda wait: -wait.seconds)


def _waiting(trace: Trace, places: Mapping[Event, Place]) -> Iterator[Event]:
    """Give the calls on the main thread that wait, or would."""
    for event in trace.main:
        if places[event].in_step and (_waits if trace.device else _would_wait)(event):
            yield event


def _waits(event: Event) -> bool:
    on_purpose = any(above.name == ON_PURPOSE for above in event.callers())
    return event.is_runtime and _RUNTIME.fullmatch(event.name) is not None and not on_purpose


def _would_wait(event: Event) -> bool:
    within = any(above.name in _OPERATORS for above in event.callers())
    return event.name in _OPERATORS and not within


def _call(event: Event) -> str:
    """Name a call of a driver with the operator that makes it."""
    operators = (above.name for above in event.callers() if above.category == "cpu_op")
    inside = next(operators, "") if event.is_runtime else ""
    return f"{event.name} in {inside}" if inside else event.name


def _line(trace: Trace, event: Event) -> str:
    """Name the innermost line of ours that led here; a trace without stacks has none."""
    frame = trace.frame_at(event.begin)
    for one in () if frame is None else (frame, *frame.callers()):
        if ours := _OURS.search(one.name):
            return ours[1]
    return ""
