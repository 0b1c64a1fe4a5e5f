"""Time of profiled steps by part. Every moment belongs to one part, so the parts add up.

On a CPU, an operator gets the main thread's time in which no operator that it calls runs. The
rest belongs to the host, or to communication while a gloo collective runs. On a device, the
first of several concurrent kernels gets the time. A collective gets the time that no other
kernel covers, and the host the rest.
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
    """Return the time by part of the steps in a trace and of the data reading before each."""
    return _on_device(trace, places) if trace.device else _on_host(trace, places)


def total_of(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> int:
    """Sum the nanoseconds of the steps and of the data reading before them."""
    reading = sum(event.end - event.begin for event in _readings(trace, places))
    return reading + sum_lengths(_steps(trace))


def _on_host(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Times:
    times: Times = Counter()
    idle: list[Interval] = []
    for event, begin, end in own_times(trace.main):
        place = places[event]
        if not place.in_step:
            continue
        if place.part_name == DATA or parts.is_operator(event):
            times[place.part_name, place.direction] += end - begin
        else:
            idle.append((begin, end))
    under_way = merge_intervals((each.begin, each.end) for each in trace.collectives)
    waits = sum_lengths(intersect_intervals(idle, under_way))
    times[COMMUNICATION, ""] += waits
    times[HOST, ""] += sum_lengths(idle) - waits
    return times


def own_times(calls: Sequence[TraceEvent]) -> Iterator[tuple[TraceEvent, int, int]]:
    """Yield the intervals in which each call, by start time, of a thread runs itself."""
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
    for kernel, place in _kernels(trace, places):
        sends = place.part_name == COMMUNICATION or kernel.name.startswith(("nccl", "oneccl"))
        same_kind = sent if sends else computed
        begin = max(kernel.begin, same_kind[-1][1] if same_kind else 0)
        if begin < kernel.end:
            same_kind.append((begin, kernel.end))
            if not sends:
                own = intersect_intervals([(begin, kernel.end)], steps)
                times[place.part_name, place.direction] += sum_lengths(own)
    covered = intersect_intervals(merge_intervals([*computed, *sent]), steps)
    times[COMMUNICATION, ""] += sum_lengths(covered) - sum_lengths(
        intersect_intervals(computed, steps)
    )
    times[HOST, ""] += sum_lengths(steps) - sum_lengths(covered)
    times[DATA, ""] += sum(event.end - event.begin for event in _readings(trace, places))
    return times


def _kernels(
    trace: Trace, places: Mapping[TraceEvent, CallPlace]
) -> Iterator[tuple[TraceEvent, CallPlace]]:
    """Yield device activities by start time, each with the place of its launching call."""
    calls = (*trace.main, *trace.others)
    launches = {e.args["correlation"]: places[e] for e in calls if "correlation" in e.args}
    for kernel in sorted(trace.device, key=lambda event: event.begin):
        yield kernel, launches.get(kernel.args.get("correlation", -1), CallPlace())


def _steps(trace: Trace) -> list[Interval]:
    return [(event.begin, event.end) for event in trace.main if event.is_step]


def _readings(trace: Trace, places: Mapping[TraceEvent, CallPlace]) -> Iterator[TraceEvent]:
    """Yield the calls that read a batch. They run between steps."""
    for event in trace.main:
        if places[event].part_name == DATA and event.parent is None:
            yield event


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap. The result is sorted."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def intersect_intervals(ones: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two lists of sorted, disjoint intervals."""
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


def sum_lengths(intervals: Iterable[Interval]) -> int:
    """Sum the lengths of intervals."""
    return sum(end - begin for begin, end in intervals)
