"""The memory model: published figures, parts by hand, and which way changes move them."""

from dataclasses import replace
from typing import Any

import pytest

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.planner.job import TrainingJob
from components.planner.memory import (
    RankMemory,
    _activations,
    _gathered_layers,
    _loss,
    plan_memory,
    rank_memory,
    usable_bytes,
)
from components.planner.states import (
    DeviceParameters,
    compute_states,
    count_parameters,
    shard_gradients,
    shard_states,
    step_bytes,
)
from tests.components.planner.jobs import (
    GIB,
    MIDDLE,
    SMALL,
    hopper,
    job,
    layout,
    ours,
    with_values,
)


@pytest.mark.parametrize(
    ("billions", "without", "with_sum"),
    [(1, 16, 20), (7, 112, 140), (70, 1_120, 1_400), (405, 6_480, 8_100)],
)
def test_a_parameter_takes_16_bytes_and_20_with_a_float32_sum(billions, without, with_sum):
    """Ultra-Scale Playbook, the table of memory for weights, gradients and optimizer."""
    plain = job(MIDDLE, layout(), accumulate_bytes=0)
    assert shard_states(plain, billions, 1).total_bytes == without
    assert shard_states(job(MIDDLE, layout()), billions, 1).total_bytes == with_sum


@pytest.mark.parametrize("data", [2, 4, 8, 64])
def test_zero_shards_optimizer_then_gradients_then_weights(data: int) -> None:
    """Playbook, "ZeRO", k = 12, with 4 bytes more for the float32 sum of gradients."""
    expected = {
        0: 2 + 2 + 12 + 4,
        1: 2 + 2 + 12 / data + 4,
        2: 2 + (2 + 12) / data + 4 / data,
        3: (2 + 2 + 12) / data + 4 / data,
    }
    for zero, bytes_each in expected.items():
        measured = shard_states(job(MIDDLE, layout(zero=zero)), 1.0, data).total_bytes
        assert measured == pytest.approx(bytes_each)


@pytest.mark.parametrize(
    ("data", "law"), [(2, 17.0), (4, 13.5), (8, 11.75), (16, 10.875), (256, 10.0546875)]
)
def test_the_measured_law_of_zero_1_is_10_plus_14_over_data(data: int, law: float) -> None:
    """The lower envelope of the released H100 layouts' allocated memory."""
    software = with_values(ours().memory, step_bytes=2.0, shared_step_bytes=2.0)
    sharing = job(MIDDLE, layout(data=data, zero=1))
    one = DeviceParameters(dense=1.0, expert=0.0, ends=0.0, largest=0.0)
    assert compute_states(sharing, one).total_bytes + step_bytes(sharing, one, software) == law


def test_all_stages_together_hold_the_model_and_a_second_tied_end() -> None:
    for pipeline in (1, 2, 8):
        one = job(MIDDLE, layout(pipeline=pipeline))
        total = sum(count_parameters(one, stage).dense for stage in range(pipeline))
        again = MIDDLE.vocab_size * MIDDLE.dim * (pipeline > 1)
        # The final norm, 2 x 4,096 numbers, is no stage's.
        assert total == MIDDLE.total_parameters + again - 2 * MIDDLE.dim


def planned(one: TrainingJob, **software: Any) -> list[RankMemory]:
    """Return the memory of each rank, with figures of the software changed."""
    return list(plan_memory(one, hopper(), with_values(ours().memory, **software)).ranks)


def test_the_parts_add_up_and_the_limit_is_the_measured_one() -> None:
    first = planned(job(MIDDLE, layout(tensor=8)))[0].bytes_by_part()
    parts = [value for name, value in first.items() if name != "peak_bytes"]
    assert sum(parts) == pytest.approx(first["peak_bytes"], abs=10)
    assert usable_bytes(hopper()) == 74_947_000_000
    unmeasured = with_values(hopper(), usable_bytes=None, context_bytes=GIB)
    assert usable_bytes(unmeasured) == unmeasured.memory_bytes - GIB


def test_microbatches_in_flight_keep_cast_weights_unless_layers_are_recomputed() -> None:
    casting = job(MIDDLE, layout(pipeline=4), cast_bytes=2)
    layers = MIDDLE.layer_parameters * MIDDLE.num_layers // 4  # and nothing of the ends
    kept = [in_flight * 2 * layers for in_flight in (4, 3, 2, 1)]
    assert [rank.casts for rank in planned(casting)] == pytest.approx(kept)
    assert {rank.casts for rank in planned(casting.with_layout(recompute="full"))} == {0.0}


def test_verdicts_are_fits_tight_and_does_not_fit() -> None:
    one, software = job(MIDDLE, layout(tensor=8)), ours().memory
    peak = plan_memory(one, hopper(), software).fullest_rank_bytes
    memories = [
        plan_memory(one, with_values(hopper(), usable_bytes=int(peak * factor)), software)
        for factor in (2.0, 1.05, 0.95, 0.89)
    ]
    verdicts = [memory.memory_verdict for memory in memories]
    assert verdicts == ["fits", "tight", "tight", "does_not_fit"]
    assert [memory.is_within_limit for memory in memories] == [True, True, False, False]
    probabilities = [memory.fit_probability for memory in memories]
    assert probabilities == sorted(probabilities, reverse=True)


def test_gradients_of_a_single_microbatch_replace_activations() -> None:
    """Neither our engine nor the plan has both, unless gradients are kept between steps."""
    single = job(MIDDLE, layout(), microbatches=1, accumulate_bytes=0)
    (memory,) = planned(single)
    gradients = memory.states.gradients
    made = memory.casts + memory.activations + memory.loss + memory.buffers
    stays = memory.states.total_bytes - gradients + memory.base
    assert memory.peak_bytes == pytest.approx(stays + max(made, gradients))
    (two,), (kept,) = (
        planned(replace(single, microbatches=2)),
        planned(single, keeps_gradients=True),
    )
    assert two.peak_bytes == pytest.approx(stays + made + gradients)
    assert kept.peak_bytes == pytest.approx(two.peak_bytes)


def test_the_update_is_the_peak_if_a_bucket_exceeds_the_passes() -> None:
    """The largest weight of the first stage is its embedding, gathered in one bucket."""
    where = layout(data=8, zero=1, num_layers=16, bucket_elements=900_000_000)
    sharing = job(SMALL, where, recompute="full", sequence_length=1_024)
    (rank,), (usual,) = (
        planned(sharing),
        planned(sharing.with_layout(bucket_elements=1_000_000)),
    )
    assert rank.update.step == 900_000_000 * sharing.gather_bytes
    assert rank.bytes_by_part()["step_bytes"] == rank.update.step
    assert rank.bytes_by_part()["activations_bytes"] == 0
    assert usual.update.step == SMALL.padded_vocab_size * SMALL.dim * sharing.gather_bytes
    assert usual.bytes_by_part()["step_bytes"] == 0


def on_our_mesh(zero: int) -> TrainingJob:
    """Take bfloat16 weights of 16 layers with two sums, masters and buckets of 10 million."""
    where = layout(data=8, zero=zero, num_layers=16, overlap=True, bucket_elements=10_000_000)
    return job(SMALL, where, gradient_bytes=0, shard_gradient_bytes=4)


def test_gradient_sums_are_whole_in_passes_and_sharded_in_the_update() -> None:
    """Rajbhandari et al. 2020, section 5, of bfloat16 weights, float32 sums and masters."""
    one = on_our_mesh(1)
    (memory,) = planned(one)
    count = count_parameters(one, 0).dense
    assert memory.states == pytest.approx((2 * count, 4 * count, 4 * count / 8, count))
    assert memory.earlier_gradients == 4 * count
    # All sums are there when the last bucket comes, and this rank's part beside them.
    assert sum(memory.update) == pytest.approx(4 * count + 4 * count / 8)
    assert shard_gradients(one, count_parameters(one, 0)) == 4 * count / 8


def test_zero_2_has_five_buckets_of_sums_instead_of_all() -> None:
    (first,), (second,) = (planned(on_our_mesh(zero)) for zero in (1, 2))
    count, largest = count_parameters(on_our_mesh(1), 0).dense, 51_200 * 2_048
    assert second.buffers - first.buffers == 4 * (4 * 10_000_000 + largest)
    assert first.earlier_gradients - second.earlier_gradients == 4 * count * 7 / 8
    assert second.casts == first.casts == 0


def test_zero_3_holds_float32_shards_and_a_few_gathered_layers() -> None:
    sharded = replace(on_our_mesh(3), weight_bytes=4, master_bytes=0)
    (three,), (plain,) = planned(sharded), planned(on_our_mesh(1))
    parts = count_parameters(on_our_mesh(3), 0)
    assert three.states.total_bytes == pytest.approx(parts.dense * (4 + 4 + 8) / 8)
    a_layer = (parts.dense - parts.ends) / 16
    weights, gradients = 2 * (3 * a_layer + parts.ends), (2 + 4) * a_layer
    assert _gathered_layers(sharded, parts, 16) == pytest.approx((weights, gradients))
    assert three.buffers - plain.buffers == pytest.approx(weights)  # when the loss is computed


def added(one: TrainingJob, part: str, **software: Any) -> list[float]:
    """Return what each rank has more of a part than with other software."""
    pairs = zip(planned(one), planned(one, **software), strict=True)
    return [getattr(more, part) - getattr(less, part) for more, less in pairs]


@pytest.mark.parametrize(
    ("cast_bytes", "gather_bytes", "each"), [(2, 4, 4 + 2), (0, 4, 4), (0, 2, 4 + 2)]
)
def test_the_heads_gradient_is_a_float32_sum_with_a_copy(
    cast_bytes: int, gather_bytes: int, each: int
) -> None:
    where = layout(pipeline=4, tensor=2)
    casting = job(MIDDLE, where, cast_bytes=cast_bytes, gather_bytes=gather_bytes)
    rows = MIDDLE.padded_vocab_size // 2
    expected = [0, 0, 0, rows * MIDDLE.dim * each]
    assert added(casting, "loss", own_gradients=False) == pytest.approx(expected)


def test_gathered_inputs_are_kept_unless_gathered_again() -> None:
    """Two of a layer, of which Korthikanti et al. (section 4.2.2) keep each rank's slice."""
    sliced = job(MIDDLE, layout(tensor=4))
    (less,) = added(sliced, "activations", keeps_gathered=True)
    inputs = 2 * MIDDLE.num_layers * 2 * MIDDLE.dim * sliced.microbatch_tokens
    assert -less == pytest.approx(inputs * 3 / 4 * ours().memory.fragmentation)
    # A graph keeps what its collectives gave.
    assert added(sliced.with_layout(compile="layers"), "activations", keeps_gathered=True) == [
        0
    ]


def test_all_stages_but_the_last_keep_their_outputs() -> None:
    piped = job(MIDDLE, layout(pipeline=4))
    hidden = 2 * MIDDLE.dim * piped.microbatch_tokens * ours().memory.fragmentation
    expected = [4 * hidden, 3 * hidden, 2 * hidden, 0]
    assert added(piped, "activations", stage_outputs=0) == pytest.approx(expected)


def test_a_large_embedding_gradient_counts_for_the_first_stage() -> None:
    wide = with_values(MIDDLE, vocab_size=10**6, padded_vocab_size=10**6)
    first, second, *_ = planned(job(wide, layout(pipeline=4)))
    matrix = 10**6 * MIDDLE.dim * job(wide, layout()).gradient_bytes
    assert second.buffers < first.buffers < matrix
    freed = first.activations / ours().memory.fragmentation + first.casts
    assert matrix - first.buffers == pytest.approx(freed / 4)


def more_parameters(shape: DecoderSpec, tensor: int) -> float:
    """Return what a tensor rank holds more than of the plain shape."""
    jobs = (job(one, layout(tensor=tensor)) for one in (shape, MIDDLE))
    one, other = (count_parameters(each, 0).dense for each in jobs)
    return one - other


@pytest.mark.parametrize(
    ("changed", "alone", "of_four"),
    [
        # Weight and bias of two norms: over all heads they are cut.
        ({"attention": {"qk_norm": MIDDLE.norm, "qk_norm_over": "all_heads"}},
         32 * 2 * 2 * 4_096, 32 * 2 * 2 * 4_096 / 4),
        ({"attention": {"qk_norm": MIDDLE.norm, "qk_norm_over": "each_head"}},
         32 * 2 * 2 * 128, 32 * 2 * 2 * 128),
        ({"mlp": {"activation": "xielu"}}, 32 * 2, 32 * 2),
    ],
    ids=["norms over all heads", "norms of each head", "scalars of the activation"],
)  # fmt: skip
def test_other_parameters_are_sharded_or_replicated(changed, alone, of_four):
    shape = with_values(MIDDLE, **changed)
    assert (more_parameters(shape, 1), more_parameters(shape, 4)) == (alone, of_four)


def test_capped_logits_have_a_stored_derivative() -> None:
    shapes = (with_values(MIDDLE, logit_cap=15.0), MIDDLE)
    one, other = (rank_memory(job(one, layout()), 0, ours().memory).loss for one in shapes)
    assert one - other == 1_024 * MIDDLE.padded_vocab_size * 2


def test_a_z_loss_has_at_most_64_mib_of_float32_logits() -> None:
    for rows, more in ((MIDDLE.padded_vocab_size, 2**26), (1_024, 4 * 1_024 * 1_024)):
        shape = with_values(MIDDLE, padded_vocab_size=rows)
        shapes = (with_values(shape, z_loss=1e-5), shape)
        one, other = (_loss(job(each, layout()), ours().memory) for each in shapes)
        assert one - other == pytest.approx(more)


def test_expert_ranks_share_dense_state_only_if_the_optimizer_is_aware() -> None:
    """Mula's EPSO: dense state over data x expert ranks, experts' over data ranks."""
    mlp = FeedForwardSpec(ffn_dim=1_024, gated=True, num_experts=64, top_k=8)
    aware = job(with_values(MIDDLE, mlp=mlp), layout(data=4, expert=8, zero=1))
    parameters = count_parameters(aware, 0)
    assert parameters.expert == 32 * 8 * 3 * 4_096 * 1_024
    for one, ranks in ((aware, 32), (aware.with_layout(expert_aware=False), 4)):
        held = compute_states(one, parameters)
        expected = 12 * parameters.expert / 4 + 12 * parameters.dense / ranks
        assert held.master + held.optimizer == expected


@pytest.mark.parametrize(("rows", "is_loss"), [(1_024, False), (100_000, True)])
def test_the_loss_and_a_recomputed_layer_do_not_coexist(rows: int, is_loss: bool) -> None:
    shape, software = with_values(MIDDLE, padded_vocab_size=rows), ours().memory
    recomputing = job(shape, layout(recompute="full"))
    stored, recomputed = _activations(recomputing, 0, software)
    loss = _loss(recomputing, software)
    assert is_loss == (loss > recomputed)
    rank = rank_memory(recomputing, 0, software)
    assert rank.loss == is_loss * loss
    kept = stored + (0 if is_loss else recomputed)
    assert rank.activations == pytest.approx(kept * software.fragmentation)


def test_both_ends_of_a_pipeline_sum_the_gradients_of_a_shared_embedding() -> None:
    """Each receives the other's float32 gradient and creates the sum."""
    where, sums = layout(pipeline=4), {"gradient_bytes": 0, "shard_gradient_bytes": 4}
    shared, own = (
        planned(job(with_values(SMALL, tied_embeddings=is_tied), where, **sums))
        for is_tied in (True, False)
    )
    steps = [
        one.update.step - other.update.step for one, other in zip(shared, own, strict=True)
    ]
    embedding = 4 * SMALL.padded_vocab_size * SMALL.dim
    assert steps == pytest.approx([2 * embedding, 0, 0, 2 * embedding])
