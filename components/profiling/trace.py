"""A trace of torch's profiler, read back as trees of calls.

The file is Chrome's trace format as Kineto writes it: events with ``ts`` and ``dur`` in
microseconds. On one thread calls nest, so who called whom follows from the times.
"""

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP = "step "  # begins the name of the range around a step
_RUNTIME = {"cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"}
_HOST = {"cpu_op", "user_annotation", *_RUNTIME}
_FRAME = "python_function"
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_ASYNCHRONOUS = "gloo:"  # lasts until its collective is over, whatever its thread does


@dataclass(eq=False, slots=True)
class TraceEvent:
    """A call on the host, or what a device did; times in nanoseconds."""

    name: str
    category: str
    thread: int
    begin: int
    end: int
    args: Mapping[str, Any]
    parent: "TraceEvent | None" = None

    @property
    def is_step(self) -> bool:
        return self.category == "user_annotation" and self.name.startswith(STEP)

    @property
    def is_runtime(self) -> bool:
        """Whether it is a call of the device's driver."""
        return self.category in _RUNTIME

    def callers(self) -> Iterator["TraceEvent"]:
        """Give who called it, the innermost first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Calls by their begin, of the main thread and others; what ran beside them."""

    main: list[TraceEvent]
    others: list[TraceEvent]
    frames: list[TraceEvent]  # Python's, a tree apart: a range outlasts what opens it
    device: list[TraceEvent]
    collectives: list[TraceEvent]

    @property
    def steps(self) -> list[int]:
        """Number the steps that are in the trace whole."""
        return [int(event.name.removeprefix(STEP)) for event in self.main if event.is_step]

    def frame_at(self, time: int) -> TraceEvent | None:
        """Find the innermost frame of Python on the main thread at a ``time``."""
        place = bisect_right(self.frames, time, key=lambda frame: frame.begin)
        frame = self.frames[place - 1] if place else None
        while frame is not None and frame.end < time:
            frame = frame.parent
        return frame


def read_trace(file: Path) -> Trace:
    """Read a trace as `torch.profiler` exports it, packed by gzip."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        tree = json.load(stream)
    return trace_of(tree["traceEvents"])


def trace_of(entries: Iterable[Mapping[str, Any]]) -> Trace:
    """Sort out the entries of a trace; the main thread is the one that takes steps."""
    threads: dict[int, list[TraceEvent]] = defaultdict(list)
    frames: dict[int, list[TraceEvent]] = defaultdict(list)
    device, collectives = [], []
    for entry in entries:
        category = entry.get("cat")
        if entry.get("ph") != "X" or category not in {*_HOST, *_DEVICE, _FRAME}:
            continue
        begin = round(entry["ts"] * 1_000)
        event = TraceEvent(
            name=entry["name"],
            category=category,
            thread=entry["tid"],
            begin=begin,
            end=begin + round(entry.get("dur", 0) * 1_000),
            args=entry.get("args", {}),
        )
        if category in _DEVICE:
            device.append(event)
        elif event.name.startswith(_ASYNCHRONOUS):
            collectives.append(event)
        else:
            kind = frames if category == _FRAME else threads
            kind[event.thread].append(event)
    for events in (*threads.values(), *frames.values()):
        _nest(events)
    first = next(name for name, calls in threads.items() if any(e.is_step for e in calls))
    return Trace(
        main=threads.pop(first),
        others=[event for calls in threads.values() for event in calls],
        frames=frames[first],
        device=device,
        collectives=collectives,
    )


def _nest(events: list[TraceEvent]) -> None:
    """Sort the calls of a thread and find each one's caller; a child ends with it at latest."""
    events.sort(key=lambda event: (event.begin, -event.end))
    calls: list[TraceEvent] = []
    for event in events:
        while calls and calls[-1].end <= event.begin:
            calls.pop()
        if calls:
            event.parent = calls[-1]
            event.end = min(event.end, event.parent.end)
        calls.append(event)
