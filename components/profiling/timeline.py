"""Time of profiled steps by part: every moment belongs to one, so that the parts add up.

On a CPU an operator has the main thread's time in which none that it calls runs; the rest is
the host's, or communication while a collective of gloo is under way. On a device the first of
kernels that run at once has the time, a collective what no other covers, the host the rest.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from components.profiling import parts
from components.profiling.parts import COMMUNICATION, DATA, HOST, CallPlace, Direction
from components.profiling.trace import Trace, TraceEvent

Interval = tuple[int, int]
Times = Counter[tuple[str, Direction]]  # nanoseconds by part and direction


def times_of(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Times:
    """Deal the time of the steps in a trace, and of the reading before each of them."""
    return _on_device(trace, places) if trace.device else _on_host(trace, places)


def total_of(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> int:
    """Add up the nanoseconds of the steps and of the reading before them."""
    reading = sum(event.end - event.begin for event in _readings(trace, places))
    return reading + length(_steps(trace))


def _on_host(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Times:
    times: Times = Counter()
    idle: list[Interval] = []
    for event, begin, end in own_times(trace.main):
        place = places[event]
        if not place.in_step:
            continue
        if place.part == DATA or parts.is_operator(event):
            times[place.part, place.direction] += end - begin
        else:
            idle.append((begin, end))
    under_way = union((each.begin, each.end) for each in trace.collectives)
    waits = length(intersect(idle, under_way))
    times[COMMUNICATION, ""] += waits
    times[HOST, ""] += length(idle) - waits
    return times


def own_times(calls: Sequence[TraceEvent]) -> Iterator[tuple[TraceEvent, int, int]]:
    """Give the stretches in which each call of a thread runs itself; ``calls`` by begin."""
    stack: list[TraceEvent] = []
    now = calls[0].begin if calls else 0

    def end_before(time: float) -> Iterator[tuple[TraceEvent, int, int]]:
        nonlocal now
        while stack and stack[-1].end <= time:
            ended = stack.pop()
            if ended.end > now:
                yield ended, now, ended.end
                now = ended.end

    for event in calls:
        yield from end_before(event.begin)
        if stack and event.begin > now:
            yield stack[-1], now, event.begin
        now = max(now, event.begin)
        stack.append(event)
    yield from end_before(math.inf)


def _on_device(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Times:
    times: Times = Counter()
    steps = _steps(trace)
    computed: list[Interval] = []
    sent: list[Interval] = []
    for kernel, place in kernels_of(trace, places):
        sends = place.part == COMMUNICATION or kernel.name.startswith(("nccl", "oneccl"))
        before = sent if sends else computed
        begin = max(kernel.begin, before[-1][1] if before else 0)
        if begin < kernel.end:
            before.append((begin, kernel.end))
            if not sends:
                own = intersect([(begin, kernel.end)], steps)
                times[place.part, place.direction] += length(own)
    seen = intersect(union([*computed, *sent]), steps)
    times[COMMUNICATION, ""] += length(seen) - length(intersect(computed, steps))
    times[HOST, ""] += length(steps) - length(seen)
    times[DATA, ""] += sum(event.end - event.begin for event in _readings(trace, places))
    return times


def kernels_of(
    trace: Trace, places: Mapping[TraceEvent, CallPlace]
) -> Iterator[tuple[TraceEvent, CallPlace]]:
    """Pair what a device did, by its begin, with the place of the call of the same number."""
    calls = (*trace.main, *trace.others)
    launches = {e.args["correlation"]: places[e] for e in calls if "correlation" in e.args}
    for kernel in sorted(trace.device, key=lambda event: event.begin):
        yield kernel, launches.get(kernel.args.get("correlation", -1), CallPlace())


def _steps(trace: Trace) -> list[Interval]:
    return [(event.begin, event.end) for event in trace.main if event.is_step]


def _readings(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Iterator[TraceEvent]:
    """Give the calls that read a batch, which is done between steps."""
    for event in trace.main:
        if places[event].part == DATA and event.parent is None:
            yield event


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap; what comes out is in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def intersect(ones: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Give what lies in both; either is in order and without overlaps."""
    common: list[Interval] = []
    here = there = 0
    while here < len(ones) and there < len(others):
        begin = max(ones[here][0], others[there][0])
        end = min(ones[here][1], others[there][1])
        if begin < end:
            common.append((begin, end))
        if ones[here][1] < others[there][1]:
            here += 1
        else:
            there += 1
    return common


def length(intervals: Iterable[Interval]) -> int:
    """Add up how long intervals last."""
    return sum(end - begin for begin, end in intervals)
