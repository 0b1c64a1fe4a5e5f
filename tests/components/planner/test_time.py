"""Step time: the papers' formulas, and that every change moves it the right way."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.rank_groups import place_group
from components.config.schema.cluster import Hardware
from components.config.schema.sections import DeepSpeedZero
from components.errors import RecipeError
from components.planner.communication import node_rate
from components.planner.job import TrainingJob
from components.planner.passes import layer_seconds
from components.planner.products import Product, filled_fraction
from components.planner.schedule import bubble_fraction
from components.planner.states import bucket_bytes, count_parameters
from components.planner.time import gathered_bytes, plan_time, reduced_bytes
from tests.components.layouts import parallelism
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values

MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
SPEED = ours().speed


@pytest.mark.parametrize(
    ("microbatches", "bubble"),
    [(1, 7.0), (2, 3.5), (4, 1.75), (8, 0.875), (16, 0.4375), (32, 0.21875)],
)
def test_the_bubble_of_eight_ranks_equals_the_playbook(
    microbatches: int, bubble: float
) -> None:
    for schedule, stages in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 8)):
        where = parallelism(schedule=schedule, pipeline=8, stages_per_rank=stages)
        fraction = bubble_fraction(where, microbatches)
        assert fraction == bubble / stages


def test_a_zero_bubble_leaves_a_third() -> None:
    third = bubble_fraction(parallelism(schedule="zero_bubble", pipeline=4), 3)
    assert third == pytest.approx(1 / 3)


def test_ranks_lie_on_nodes_by_their_stride() -> None:
    groups = [place_group(*one, 8) for one in ((8, 1), (16, 1), (4, 8), (4, 4))]
    assert [(one.nodes, one.on_node) for one in groups] == [(1, 8), (2, 8), (4, 1), (2, 2)]


def test_bandwidth_is_interpolated_between_measured_node_counts() -> None:
    across = hopper().across
    assert node_rate(across, 4, 8) == 161.1
    assert 95.5 < node_rate(across, 6, 8) < 161.1
    assert node_rate(across, 512, 8) == 13.3
    shuffled = across.model_copy(update={"by_nodes": across.by_nodes[::-1]})
    assert node_rate(shuffled, 6, 8) == node_rate(across, 6, 8)


def test_a_product_of_whole_tiles_and_waves_loses_nothing() -> None:
    assert filled_fraction(Product(rows=128 * 132, columns=128, depth=128), 132) == 1
    assert filled_fraction(Product(rows=128 * 133, columns=128, depth=128), 132) < 0.51
    wide, odd = (
        Product(rows=16_384, columns=width / 8, depth=width) for width in (13_824, 14_400)
    )
    assert filled_fraction(odd, 108) < 0.85 * filled_fraction(wide, 108)


def test_attention_counts_the_pairs_inside_windows() -> None:
    shape = with_values(MIDDLE, attention={"windows": (1_024, 1_024, 1_024, "full")})
    part = (3 * (1_024 - 1_024**2 / 8_192) + 2_048) / (4 * 2_048)
    whole, less = (
        layer_seconds(job(one, layout()), hopper(), SPEED) for one in (MIDDLE, shape)
    )
    assert less.attention == pytest.approx(part * whole.attention)
    assert less._replace(attention=whole.attention) == whole
    same = with_values(MIDDLE, attention={"windows": (4_096, 8_192)})
    assert layer_seconds(job(same, layout()), hopper(), SPEED) == whole


def slower_links(hardware: Hardware, factor: float) -> Hardware:
    measured = tuple((nodes, rate * factor) for nodes, rate in hardware.across.by_nodes)
    rates = {"all_gather": 249.8 * factor, "all_reduce": 436.0 * factor}
    slower = {f"{kind}_gigabytes_per_second": rate for kind, rate in rates.items()}
    return with_values(hardware, across={"by_nodes": measured}, inside=slower)


@settings(max_examples=30)
@given(
    tensor=st.sampled_from([2, 4, 8, 16]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([2, 8]),
    zero=st.sampled_from([0, 1]),
    factor=st.floats(0.1, 0.9),
)
def test_less_of_anything_never_makes_a_step_shorter(tensor, pipeline, data, zero, factor):
    where = layout(tensor=tensor, pipeline=pipeline, data=data, zero=zero)
    one, machine = job(MIDDLE, where), hopper()
    before = plan_time(one, machine, SPEED).total_seconds
    assert plan_time(one, slower_links(machine, factor), SPEED).total_seconds > before
    rate = machine.memory_gigabytes_per_second * factor
    slow = with_values(machine, memory_gigabytes_per_second=rate)
    assert plan_time(one, slow, SPEED).total_seconds >= before  # equal if the host is slower
    full = one.with_layout(recompute="full")
    assert plan_time(full, machine, SPEED).total_seconds >= before


def test_interleaving_shortens_the_bubble() -> None:
    plain = plan_time(job(MIDDLE, layout(pipeline=4)), hopper(), SPEED)
    pairs = layout(pipeline=4, schedule="interleaved", stages_per_rank=2)
    assert plan_time(job(MIDDLE, pairs), hopper(), SPEED).bubble < plain.bubble


def test_tensor_parallelism_across_nodes_is_slower_than_a_pipeline_across_them() -> None:
    machine = with_values(hopper(), across={"crossing_layer_seconds": None})
    layouts = layout(tensor=16), layout(tensor=8, pipeline=2)
    wide, deep = (plan_time(job(MIDDLE, x), machine, SPEED).total_seconds for x in layouts)
    assert wide > deep
    crossed = plan_time(job(MIDDLE, layouts[1]), hopper(), SPEED).total_seconds
    assert crossed > wide  # as measured there


NO_RATES = dict.fromkeys(
    f"{kind}_gigabytes_per_second" for kind in ("peak", "all_reduce", "all_gather")
)


@pytest.mark.parametrize(
    ("changed", "compute", "message"),
    [
        ({"gemm_teraflops": {}}, "bfloat16",
         r"gemm_teraflops\.bfloat16: .*no measured product in bfloat16\n  time torch\.mm"),
        ({}, "float32", r"precision\.compute: .*states no peak in float32"),
        ({"inside": NO_RATES}, "bfloat16",
         r"inside\.peak_gigabytes_per_second: the profile has no"),
    ],
)  # fmt: skip
def test_missing_values_of_a_profile_are_named(changed, compute, message):
    one = job(MIDDLE, layout(tensor=2), compute=compute)
    with pytest.raises(RecipeError, match=message):
        plan_time(one, with_values(hopper(), **changed), SPEED)


def reduction(zero: int, *, overlap: bool, microbatches: int = 8, **changes: Any) -> float:
    where = layout(data=8, zero=zero, overlap=overlap, bucket_elements=10**8, num_layers=32)
    one = job(MIDDLE, where, shard_gradient_bytes=4, microbatches=microbatches, **changes)
    return plan_time(one, hopper(), SPEED).reduction


def test_passes_hide_all_but_the_last_bucket_of_gradients_and_the_first_of_weights() -> None:
    waits = SPEED.step_latencies * (hopper().inside.latency_seconds or 0.0)
    count = count_parameters(job(MIDDLE, layout(data=8)), 0).dense
    buckets = ceil(count / (51_200 * 4_096))  # the largest weight alone is more than a bucket
    for zero in (0, 1, 2):
        open_, hidden = (reduction(zero, overlap=one) - waits for one in (False, True))
        assert hidden == pytest.approx(open_ / buckets)


def test_sent_bytes_follow_the_dtype() -> None:
    sent = [job(MIDDLE, layout(data=8, zero=zero), reduce_bytes=2) for zero in range(4)]
    reduced = [reduced_bytes(one, 1.0, 8) * 8 / 7 for one in sent]
    gathered = [gathered_bytes(one, 1.0, 8) * 8 / 7 for one in sent]
    assert reduced == [4, 2, 2 * 8, 2 * 8]
    assert gathered == [0, 2, 2, 2 * 2 * 8]


def deepspeed(zero: int, *, scatters: bool = True, overlaps: bool = False) -> TrainingJob:
    collectives = DeepSpeedZero(
        overlap_comm=overlaps,
        reduce_scatter=scatters,
        reduce_bucket_size=90_000_000,
        allgather_bucket_size=500_000_000,
    )
    where = layout(data=8, zero=zero, engine="deepspeed", deepspeed=collectives)
    return job(MIDDLE, where, reduce_bytes=2, gradient_bytes=2)


@pytest.mark.parametrize("zero", [1, 2])
def test_deepspeed_sends_gradients_twice_without_reduce_scatter(zero: int) -> None:
    scattered, reduced = (
        reduced_bytes(deepspeed(zero, scatters=scatters), 1.0, 8) for scatters in (True, False)
    )
    assert reduced == 2 * scattered


@pytest.mark.parametrize(("zero", "buckets"), [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_deepspeed_allocates_a_bucket_and_a_second_where_it_overlaps(zero, buckets):
    """``setup_buckets`` of DeepSpeed 0.19.8 allocates them whole, in the gradients' dtype."""
    one, two = (
        bucket_bytes(deepspeed(zero, overlaps=overlaps), count_parameters(deepspeed(zero), 0))
        for overlaps in (False, True)
    )
    assert (one, two) == (buckets * 2 * 90e6, buckets * 4 * 90e6)


def test_deepspeed_hides_reductions_and_not_the_gathers_at_the_end_of_its_step() -> None:
    jobs = [deepspeed(1, overlaps=overlaps) for overlaps in (False, True)]
    whole, left = (plan_time(one, hopper(), SPEED).reduction for one in jobs)
    assert 0.5 * gathered_bytes(jobs[1], held_numbers(), 8) / 450e9 < left < whole


def test_zero_3_gathers_overlap_with_the_previous_layer() -> None:
    whole = reduction(3, overlap=False)
    assert whole == reduction(3, overlap=True)
    sent = reduced_bytes(job(MIDDLE, layout(data=8, zero=3)), held_numbers(), 8)
    sent += gathered_bytes(job(MIDDLE, layout(data=8, zero=3)), held_numbers(), 8)
    assert 0 < whole < 0.1 * sent / 436e9


def held_numbers() -> float:
    return count_parameters(job(MIDDLE, layout(data=8)), 0).dense
