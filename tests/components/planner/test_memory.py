"""The memory model against the figures that papers and the playbook print."""

from dataclasses import replace

import pytest

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.positions import PositionsSpec
from components.planner.activations import count_stored_microbatches, layer_bytes_per_token
from components.planner.job import TrainingJob
from components.planner.memory import (
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
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

GIB = 2**30
SMALL = gpt(dim=2_048, num_layers=16, num_heads=16)
MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
LARGE = gpt(dim=8_192, num_layers=80, num_heads=64)


@pytest.mark.parametrize(
    ("billions", "without", "with_sum"),
    [(1, 16, 20), (7, 112, 140), (70, 1_120, 1_400), (405, 6_480, 8_100)],
)
def test_a_parameter_takes_16_bytes_and_20_with_a_float32_sum(
    billions: int, without: int, with_sum: int
) -> None:
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
    figures = {"step_bytes": 2.0, "shared_step_bytes": 2.0}
    software = ours().memory.model_copy(update=figures)
    sharing = job(MIDDLE, layout(data=data, zero=1))
    one = DeviceParameters(dense=1.0, expert=0.0, ends=0.0, largest=0.0)
    assert compute_states(sharing, one).total_bytes + step_bytes(sharing, one, software) == law


@pytest.mark.parametrize(
    ("shape", "by_length"),
    [
        (SMALL, {1_024: 1.0625, 4_096: 4.25, 16_384: 17}),
        (MIDDLE, {1_024: 4.25, 4_096: 17, 16_384: 68, 131_072: 544}),
        (LARGE, {1_024: 21.25, 4_096: 85, 16_384: 340}),
    ],
)
def test_a_gpt_layer_keeps_34_bytes_a_token_and_width(
    shape: DecoderSpec, by_length: dict[int, float]
) -> None:
    """Playbook's bars of activations with fused attention, one sequence, in GiB."""
    for length, gibibytes in by_length.items():
        one = job(shape, layout(), sequence_length=length)
        kept = one.shape.num_layers * layer_bytes_per_token(one) * length
        assert kept / GIB == gibibytes


@pytest.mark.parametrize(
    ("shape", "by_length"),
    [
        (MIDDLE, {1_024: 9.25, 2_048: 28.5, 4_096: 97.0, 8_192: 354.0, 16_384: 1_348.0}),
        (LARGE, {1_024: 46.25, 2_048: 142.5, 4_096: 485.0, 8_192: 1_770.0}),
    ],
)
def test_unfused_attention_adds_5_a_s_over_h(
    shape: DecoderSpec, by_length: dict[int, float]
) -> None:
    """Korthikanti et al. 2022, table 2: s b h (34 + 5 a s / h); the playbook's first bars."""
    for length, gibibytes in by_length.items():
        one = job(shape, layout(), sequence_length=length, fused_attention=False)
        kept = one.shape.num_layers * layer_bytes_per_token(one) * length
        assert kept / GIB == pytest.approx(gibibytes, abs=0.01)


def test_tensor_ranks_cut_24_of_34_and_all_with_sequence_parallelism() -> None:
    """Korthikanti et al. 2022, table 2; the playbook's 70B at 8 ranks: 32.5 and 10.625 GiB."""
    plain = job(LARGE, layout(tensor=8, sequence_parallel=False))
    assert layer_bytes_per_token(plain) == 8_192 * (10 + 24 / 8)
    assert 80 * layer_bytes_per_token(plain) * 4_096 / GIB == 32.5
    cut = job(LARGE, layout(tensor=8))
    assert 80 * layer_bytes_per_token(cut) * 4_096 / GIB == 10.625


def test_full_recomputation_keeps_a_layer_s_input_alone() -> None:
    """Playbook: 2 s b h a layer; 1, 5 and 15.8 GiB for 8B, 70B and 405B at 4,096 tokens."""
    for shape, gibibytes in ((MIDDLE, 1.0), (LARGE, 5.0)):
        one = job(shape, layout(), recompute="full")
        kept = shape.num_layers * layer_bytes_per_token(one) * 4_096
        assert kept / GIB == gibibytes


def test_1f1b_keeps_as_many_microbatches_as_ranks_follow_and_gpipe_all() -> None:
    where = layout(pipeline=4)
    assert [count_stored_microbatches(job(MIDDLE, where), rank) for rank in range(4)] == [
        4,
        3,
        2,
        1,
    ]
    gpipe = layout(pipeline=4, schedule="gpipe")
    assert count_stored_microbatches(job(MIDDLE, gpipe), 3) == 8
    pairs = layout(pipeline=4, schedule="interleaved", stages_per_rank=2)
    assert count_stored_microbatches(job(MIDDLE, pairs), 0) == (4 + 6 + 1) / 2


def test_all_stages_together_hold_the_model_and_a_second_tied_end() -> None:
    for pipeline in (1, 2, 8):
        one = job(MIDDLE, layout(pipeline=pipeline))
        total = sum(count_parameters(one, stage).dense for stage in range(pipeline))
        again = MIDDLE.vocab_size * MIDDLE.dim * (pipeline > 1)
        # The final norm, 2 x 4,096 numbers, is no stage's.
        assert total == MIDDLE.total_parameters + again - 2 * MIDDLE.dim


def test_the_parts_add_up_and_the_limit_is_the_measured_one() -> None:
    memory = plan_memory(job(MIDDLE, layout(tensor=8)), hopper(), ours().memory)
    first = memory.ranks[0].bytes_by_part()
    parts = [value for name, value in first.items() if name != "peak_bytes"]
    assert sum(parts) == pytest.approx(first["peak_bytes"], abs=10)
    assert usable_bytes(hopper()) == 74_947_000_000
    unmeasured = hopper().model_copy(update={"usable_bytes": None, "context_bytes": GIB})
    assert usable_bytes(unmeasured) == unmeasured.memory_bytes - GIB


def test_microbatches_in_flight_keep_cast_weights_unless_layers_are_recomputed() -> None:
    casting = job(MIDDLE, layout(pipeline=4), cast_bytes=2)
    memory = plan_memory(casting, hopper(), ours().memory)
    layers = MIDDLE.layer_parameters * MIDDLE.num_layers // 4
    counts = [layers] * 4  # 8 layers a stage, and nothing of the ends
    kept = [4 * 2 * counts[0], 3 * 2 * counts[1], 2 * 2 * counts[2], 2 * counts[3]]
    assert [rank.casts for rank in memory.ranks] == pytest.approx(kept)
    again = plan_memory(casting.with_layout(recompute="full"), hopper(), ours().memory)
    assert {rank.casts for rank in again.ranks} == {0.0}


def test_the_verdict_goes_from_fits_over_tight_to_does_not_fit() -> None:
    one = job(MIDDLE, layout(tensor=8))
    peak = plan_memory(one, hopper(), ours().memory).fullest_rank_bytes
    memories = [
        plan_memory(
            one,
            hopper().model_copy(update={"usable_bytes": int(peak * factor)}),
            ours().memory,
        )
        for factor in (2.0, 1.05, 0.95, 0.89)
    ]
    verdicts = [memory.memory_verdict for memory in memories]
    assert verdicts == ["fits", "tight", "tight", "does_not_fit"]
    assert [memory.is_within_limit for memory in memories] == [True, True, False, False]
    probabilities = [memory.fit_probability for memory in memories]
    assert probabilities == sorted(probabilities, reverse=True)


def test_of_a_single_microbatch_gradients_take_the_place_of_activations() -> None:
    """Neither our engine nor the plan has both, unless gradients are kept between steps."""
    software = ours().memory
    single = job(MIDDLE, layout(), microbatches=1, accumulate_bytes=0)
    memory = plan_memory(single, hopper(), software).ranks[0]
    gradients = memory.states.gradients
    made = memory.casts + memory.activations + memory.loss + memory.buffers
    stays = memory.states.total_bytes - gradients + memory.base
    assert memory.peak_bytes == pytest.approx(stays + max(made, gradients))
    two = plan_memory(replace(single, microbatches=2), hopper(), software)
    assert two.fullest_rank_bytes == pytest.approx(stays + made + gradients)
    kept = software.model_copy(update={"keeps_gradients": True})
    assert plan_memory(single, hopper(), kept).fullest_rank_bytes == pytest.approx(
        two.fullest_rank_bytes
    )


def test_the_update_is_the_peak_where_a_bucket_is_more_than_the_passes() -> None:
    """The largest weight of the first stage is its embedding, gathered in one bucket."""
    where = layout(data=8, zero=1, num_layers=16, bucket_elements=900_000_000)
    sharing = job(SMALL, where, recompute="full", sequence_length=1_024)
    rank = plan_memory(sharing, hopper(), ours().memory).ranks[0]
    assert rank.update.step == 900_000_000 * sharing.gather_bytes
    assert rank.bytes_by_part()["step_bytes"] == rank.update.step
    assert rank.bytes_by_part()["activations_bytes"] == 0
    small = sharing.with_layout(bucket_elements=1_000_000)
    usual = plan_memory(small, hopper(), ours().memory).ranks[0]
    assert usual.update.step == SMALL.padded_vocab_size * SMALL.dim * sharing.gather_bytes
    assert usual.bytes_by_part()["step_bytes"] == 0


def on_our_mesh(zero: int, data: int = 8) -> TrainingJob:
    """Take bfloat16 weights of 16 layers with two sums, masters and buckets of 10 million."""
    where = layout(
        data=data, zero=zero, num_layers=16, overlap=True, bucket_elements=10_000_000
    )
    numbers = {"gradient_bytes": 0, "shard_gradient_bytes": 4}
    return job(SMALL, where, **numbers)


def test_sums_are_whole_in_the_passes_and_a_shard_in_the_update() -> None:
    """Rajbhandari et al. 2020, section 5, of bfloat16 weights, float32 sums and masters."""
    one = on_our_mesh(1)
    memory = plan_memory(one, hopper(), ours().memory).ranks[0]
    count = count_parameters(one, 0).dense
    assert memory.states == pytest.approx((2 * count, 4 * count, 4 * count / 8, count))
    assert memory.earlier_gradients == 4 * count
    # All sums are there when the last bucket comes, and this rank's part beside them.
    assert sum(memory.update) == pytest.approx(4 * count + 4 * count / 8)
    assert shard_gradients(one, count_parameters(one, 0)) == 4 * count / 8


def test_zero_2_has_five_buckets_of_sums_instead_of_all() -> None:
    first, second = (
        plan_memory(on_our_mesh(zero), hopper(), ours().memory).ranks[0] for zero in (1, 2)
    )
    count, largest = count_parameters(on_our_mesh(1), 0).dense, 51_200 * 2_048
    buckets = 4 * (4 * 10_000_000 + largest)
    assert second.buffers - first.buffers == buckets
    assert first.earlier_gradients - second.earlier_gradients == 4 * count * 7 / 8
    assert second.casts == first.casts == 0


def test_zero_3_holds_float32_shards_and_a_few_gathered_layers() -> None:
    sharded = replace(on_our_mesh(3), weight_bytes=4, master_bytes=0)
    three = plan_memory(sharded, hopper(), ours().memory).ranks[0]
    parts = count_parameters(on_our_mesh(3), 0)
    assert three.states.total_bytes == pytest.approx(parts.dense * (4 + 4 + 8) / 8)
    a_layer = (parts.dense - parts.ends) / 16
    plain = plan_memory(on_our_mesh(1), hopper(), ours().memory).ranks[0]
    weights, gradients = 2 * (3 * a_layer + parts.ends), (2 + 4) * a_layer
    assert _gathered_layers(sharded, parts, 16) == pytest.approx((weights, gradients))
    assert three.buffers - plain.buffers == pytest.approx(weights)  # when the loss is computed


@pytest.mark.parametrize(
    ("cast_bytes", "gather_bytes", "each"), [(2, 4, 4 + 2), (0, 4, 4), (0, 2, 4 + 2)]
)
def test_the_heads_gradient_is_a_wide_sum_beside_the_cast_weight_or_its_own_rounding(
    cast_bytes: int, gather_bytes: int, each: int
) -> None:
    where = layout(pipeline=4, tensor=2)
    casting = job(MIDDLE, where, cast_bytes=cast_bytes, gather_bytes=gather_bytes)
    without = ours().memory.model_copy(update={"own_gradients": False})
    losses = [
        [rank.loss for rank in plan_memory(casting, hopper(), software).ranks]
        for software in (ours().memory, without)
    ]
    rows = MIDDLE.padded_vocab_size // 2
    added = [more - less for more, less in zip(*losses, strict=True)]
    assert added == pytest.approx([0, 0, 0, rows * MIDDLE.dim * each])


def test_inputs_stay_as_gathered_but_where_they_are_gathered_again() -> None:
    """Two of a layer, of which Korthikanti et al. (section 4.2.2) keep each rank's slice."""
    sliced = job(MIDDLE, layout(tensor=4))
    keeping = ours().memory.model_copy(update={"keeps_gathered": True})
    more, less = (
        plan_memory(sliced, hopper(), software).ranks[0].activations
        for software in (keeping, ours().memory)
    )
    inputs = 2 * MIDDLE.num_layers * 2 * MIDDLE.dim * sliced.microbatch_tokens
    assert more - less == pytest.approx(inputs * 3 / 4 * ours().memory.fragmentation)
    compiled = plan_memory(sliced.with_layout(compile="layers"), hopper(), ours().memory)
    assert compiled.ranks[0].activations == more  # a graph keeps what its collectives gave


def test_all_stages_but_the_last_keep_what_they_sent() -> None:
    piped = job(MIDDLE, layout(pipeline=4))
    without = ours().memory.model_copy(update={"stage_outputs": 0})
    kept = [
        [rank.activations for rank in plan_memory(piped, hopper(), software).ranks]
        for software in (ours().memory, without)
    ]
    hidden = 2 * MIDDLE.dim * piped.microbatch_tokens * ours().memory.fragmentation
    added = [more - less for more, less in zip(*kept, strict=True)]
    assert added == pytest.approx([4 * hidden, 3 * hidden, 2 * hidden, 0])


def test_an_embedding_that_outweighs_a_microbatch_counts_for_the_first_stage() -> None:
    wide = MIDDLE.model_copy(update={"vocab_size": 10**6, "padded_vocab_size": 10**6})
    memory = plan_memory(job(wide, layout(pipeline=4)), hopper(), ours().memory)
    first, second, *_ = memory.ranks
    matrix = 10**6 * MIDDLE.dim * job(wide, layout()).gradient_bytes
    assert second.buffers < first.buffers < matrix
    freed = first.activations / ours().memory.fragmentation + first.casts
    assert matrix - first.buffers == pytest.approx(freed / 4)


def test_norms_over_all_heads_are_cut_and_those_of_each_head_held_whole() -> None:
    plain = MIDDLE.attention
    counts = {}
    for over in ("all_heads", "each_head"):
        norm = {"qk_norm": MIDDLE.norm, "qk_norm_over": over}
        shape = MIDDLE.model_copy(update={"attention": plain.model_copy(update=norm)})
        one, two = (
            count_parameters(job(shape, layout(tensor=ranks)), 0).dense for ranks in (1, 4)
        )
        bare_one, bare_two = (
            count_parameters(job(MIDDLE, layout(tensor=ranks)), 0).dense for ranks in (1, 4)
        )
        counts[over] = (one - bare_one, two - bare_two)
    both = 2  # weight and bias
    assert counts["all_heads"] == (32 * both * 2 * 4_096, 32 * both * 2 * 4_096 / 4)
    assert counts["each_head"] == (32 * both * 2 * 128, 32 * both * 2 * 128)


def test_the_activations_scalars_are_held_whole_by_each_tensor_rank() -> None:
    trained = MIDDLE.mlp.model_copy(update={"activation": "xielu"})
    shape = MIDDLE.model_copy(update={"mlp": trained})
    for tensor in (1, 4):
        here = layout(tensor=tensor)
        one, other = (count_parameters(job(each, here), 0).dense for each in (shape, MIDDLE))
        assert one - other == 32 * 2


def test_capped_logits_have_their_derivative_beside_them() -> None:
    capped = MIDDLE.model_copy(update={"logit_cap": 15.0})
    one, other = (
        rank_memory(job(shape, layout()), 0, ours().memory).loss for shape in (capped, MIDDLE)
    )
    assert one - other == 1_024 * MIDDLE.padded_vocab_size * 2


def test_a_z_loss_has_64_mib_of_logits_in_float32_at_most() -> None:
    for rows, more in ((MIDDLE.padded_vocab_size, 2**26), (1_024, 4 * 1_024 * 1_024)):
        shape = MIDDLE.model_copy(update={"padded_vocab_size": rows})
        one, other = (
            _loss(job(each, layout()), ours().memory)
            for each in (shape.model_copy(update={"z_loss": 1e-5}), shape)
        )
        assert one - other == pytest.approx(more)


def test_layers_that_do_not_rotate_keep_queries_and_keys_once() -> None:
    kept = {}
    for skip_every in (None, 4, 1):
        rotary = PositionsSpec(base=10_000.0, skip_every=skip_every)
        shape = MIDDLE.model_copy(update={"positions": rotary})
        kept[skip_every] = layer_bytes_per_token(job(shape, layout()))
    turned = 2 * 2 * 4_096  # bytes of a token's queries and keys
    assert kept[None] - kept[4] == turned / 4
    assert kept[None] - kept[1] == turned
