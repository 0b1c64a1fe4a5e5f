"""Dealing time to parts where the answer is known: traces written by hand."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from components.profiling import parts, timeline
from components.profiling.profile import profile_of
from components.profiling.trace import trace_of

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple))


def entry(category: str, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    """Write an event as Kineto does, in microseconds."""
    thread = args.pop("tid", 1)
    times = {"ts": begin, "dur": end - begin}
    return {"ph": "X", "cat": category, "name": name, "tid": thread, "args": args, **times}


def product(begin: float, end: float, **args: Any) -> dict[str, Any]:
    dims, kinds = [[8, 16], [16, 4]], ["float", "float"]
    named = {"Input Dims": dims, "Input type": kinds, "Sequence number": 3}
    return entry("cpu_op", "aten::mm", begin, end, **named, **args)


def range_around(name: str, begin: float, end: float) -> dict[str, Any]:
    return entry("user_annotation", name, begin, end)


# A step of 100 microseconds; its products take 10 forward and 20 backward.
STEP = [
    range_around("step 4", 0, 100),
    range_around("part:model decoder", 5, 30),
    product(10, 20),
    entry(
        "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 40, 70,
        **{"Sequence number": 3},
    ),
    product(45, 65),
]  # fmt: skip
GLOO = [
    entry("cpu_op", "c10d::allreduce_", 71, 73),
    entry("cpu_op", "gloo:all_reduce", 72, 90),
    entry("cpu_op", "aten::mul_", 80, 84),
]
KERNELS = [
    entry("cuda_runtime", "cudaLaunchKernel", 11, 12, correlation=7),
    entry("cuda_runtime", "cudaLaunchKernel", 50, 51, correlation=8),
    entry("kernel", "gemm", 20, 50, tid=90, correlation=7),
    entry("kernel", "gemm", 55, 70, tid=90, correlation=8),
    entry("kernel", "ncclDevKernel_AllReduce", 40, 80, tid=91),
]


def times(entries: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    trace = trace_of(entries)
    places = parts.places_of(trace)
    found = timeline.times_of(trace, places)
    assert sum(found.values()) == timeline.total_of(trace, places)
    return {key: ns / 1e3 for key, ns in found.items() if ns}


def test_on_a_cpu_time_outside_operators_is_host_time() -> None:
    products = {(parts.PRODUCTS, "forward"): 10, (parts.PRODUCTS, "backward"): 20}
    assert times(STEP) == products | {(parts.HOST, ""): 70}


def test_only_waiting_for_gloo_is_communication() -> None:
    found = times([*STEP, *GLOO])
    assert found[parts.COMMUNICATION, ""] == 2 + (90 - 73) - 4
    assert found[parts.GRADIENTS, ""] == 4
    assert found[parts.HOST, ""] == 70 - 2 - 17


def test_a_collective_counts_time_not_covered_by_kernels() -> None:
    assert times([*STEP, *KERNELS]) == {
        (parts.PRODUCTS, "forward"): 30,
        (parts.PRODUCTS, "backward"): 15,
        (parts.COMMUNICATION, ""): 5 + 10,
        (parts.HOST, ""): 20 + 20,
    }


def test_reading_a_batch_counts_for_the_next_step() -> None:
    read = range_around(parts.NEXT_BATCH, -20, -5)
    found = profile_of(trace_of([*STEP, read]))
    assert round(found["step_seconds"] * 1e6) == 115
    assert round(found["parts"]["data"]["seconds"] * 1e6) == 15


@given(INTERVALS, INTERVALS)
def test_unions_and_intersections_equal_those_of_sets(ones, others) -> None:
    def points(intervals) -> set[int]:
        return {point for begin, end in intervals for point in range(begin, end)}

    assert points(timeline.merge_intervals(ones)) == points(ones)
    both = (timeline.merge_intervals(one) for one in (ones, others))
    common = timeline.intersect_intervals(*both)
    assert points(common) == points(ones) & points(others)
    assert timeline.sum_lengths(common) == len(points(common))
