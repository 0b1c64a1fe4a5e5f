"""Trace of torch's profiler, read as trees of calls.

The file is in Chrome's trace format, as Kineto writes it: events with ``ts`` and ``dur`` in
microseconds. Calls of one thread nest, so the times determine each call's caller.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP = "step "  # prefix of the name of a step's range
_RUNTIME = {"cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"}
_HOST = {"cpu_op", "user_annotation", *_RUNTIME}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_ASYNCHRONOUS = "gloo:"  # lasts until the collective ends, independent of its thread


@dataclass(eq=False, slots=True)
class TraceEvent:
    """A call on the host, or an activity of a device. Times are in nanoseconds."""

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


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Calls by start time, of the main thread and of others; device activities; collectives."""

    main: list[TraceEvent]
    others: list[TraceEvent]
    device: list[TraceEvent]
    collectives: list[TraceEvent]

    @property
    def step_numbers(self) -> list[int]:
        """Numbers of the steps that are completely in the trace."""
        return [int(event.name.removeprefix(STEP)) for event in self.main if event.is_step]


def read_trace(file: Path) -> Trace:
    """Read a gzip-compressed trace as `torch.profiler` exports it."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        tree = json.load(stream)
    return trace_of(tree["traceEvents"])


def trace_of(entries: Iterable[Mapping[str, Any]]) -> Trace:
    """Sort a trace's entries by thread and kind; the main thread is the one with the steps."""
    threads: dict[int, list[TraceEvent]] = defaultdict(list)
    device, collectives = [], []
    for entry in entries:
        category = entry.get("cat")
        if entry.get("ph") != "X" or category not in _HOST | _DEVICE:
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
            threads[event.thread].append(event)
    for events in threads.values():
        _nest(events)
    first = next(name for name, calls in threads.items() if any(e.is_step for e in calls))
    return Trace(
        main=threads.pop(first),
        others=[event for calls in threads.values() for event in calls],
        device=device,
        collectives=collectives,
    )


def _nest(events: list[TraceEvent]) -> None:
    """Sort the calls of a thread and set each call's parent, which does not end earlier."""
    events.sort(key=lambda event: (event.begin, -event.end))
    calls: list[TraceEvent] = []
    for event in events:
        while calls and calls[-1].end <= event.begin:
            calls.pop()
        if calls:
            event.parent = calls[-1]
            event.end = min(event.end, event.parent.end)
        calls.append(event)
