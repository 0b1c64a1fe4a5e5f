"""Rules between the numbers of a schedule, of a model's parts, of ramps and of precision."""

import pytest

from components.config.rules.check import check_schedule
from components.errors import RecipeError
from tests.components.config.helpers import assert_refused, refusals, teuken
from tests.recipes.compositions import compose

PHASE = "schedule.phases.first"


NORM = "_target_: components.model.norms.Norm, _partial_: true, eps: 1e-5, bias: true"


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(
        r"""
schedule.phases.first.total_tokens=1_000 schedule.phases.first.warmup_tokens=1_000
    schedule.phases.first\.warmup_tokens: 1,000 is more than total_tokens - 1 = 999
schedule.phases.first.warmup_from=0.4 schedule.phases.first.start=0.3
    schedule.phases.first\.warmup_from: 0\.4 is more than start 0\.3
schedule.phases={}
    schedule\.phases: .* at least 1 item .*
    list at least 1
schedule.phases={a: 3}
    schedule\.phases\.a: 3 is not a class
    set schedule\.phases\.a\._target_=
schedule.phases={a: {warmup_tokens: x}}
    schedule\.phases\.a: missing _target_
model.attention.head_dim=33
    head_dim: 33 is odd, but rotary.*
    .*32 or 34
model.norm.bias=true
    model\.norm\.bias: true, but .*
    .*norm\.center=true
model.attention.backends=[flash, sdpa]
    model\.attention\.backends\.1: input should be .*, got 'sdpa'
    known:
model.attention.backends=[flash] data.document_mask=true cluster.device=xpu
    model\.attention\.backends: \[flash\] has no kernel for bfloat16 attention with documents, \
    slopes or windows.* on xpu
    add flex
model.attention.windows=[8, half]
    model\.attention\.windows\[1\]: 'half' is neither a positive number of keys nor
model.attention.windows=[8, 0]
    model\.attention\.windows\[1\]: 0 is neither a positive number of keys nor full
model.attention.windows=8
    windows: input should be a valid tuple, got 8
    write a list
model.positions.local_base=10_000.0
    positions\.local_base: 10000 needs a layer with a window, but all are full
model.attention.windows=[8, full] model.attention.backends=[flash] cluster.device=cuda
    model\.attention\.backends: \[flash\] has no kernel for bfloat16 attention with documents, \
    slopes or windows.* on cuda
    add flex
model.attention.sinks=true model.attention.backends=[cudnn, flash] cluster.device=cuda
    backends: \[cudnn, flash\] has no kernel for bfloat16 attention.* with sinks, heads of \
    \d+, on cuda
    add flex
model.mlp.swiglu_limit=7 model.mlp.activation=gelu
    model\.mlp\.swiglu_limit: 7 has no effect without a SwiGLU
    set .*gated=true
model.mlp.linear_offset=1 model.mlp.gated=false
    model\.mlp\.linear_offset: 1 has no effect without a SwiGLU
model.initialization.padding_row=4_096
    padding_row: 4096 is not one of 4,096 rows
    use 0 to 4,095, or null
model.initialization.padding_row=-1
    padding_row: -1 is not one of
precision=fp16 precision.loss_scale.initial=0.5
    precision\.loss_scale\.initial: 0\.5 is less than loss_scale\.minimum 1
model.embedding_norm={$NORM, weight: true, weight: true, center: false}
    model\.embedding_norm\.bias: true, but
model.attention.qk_norm={$NORM, weight: true, weight: true, center: false}
    model\.attention\.qk_norm\.bias: true, but
model.positions.scaling={_target_: components.model.rotary_scaling.Llama3Scaling, factor: 8.0, \
  low_frequency_factor: 4.0, high_frequency_factor: 4.0, original_tokens: 8}
    scaling\.low_frequency_factor: 4\.0 is not below high_frequency_factor 4\.0
recipe=mula7b_a1b scale=full model.mlp.top_k=65
    model\.mlp\.top_k: 65 is more than model\.mlp\.num_experts 64
recipe=mula7b_a1b scale=full model.mlp.shared_gate=true
    model\.mlp\.shared_gate: true, but there is no shared expert
    set
recipe=bloom560m scale=full budget.ramp_up.start_tokens=391_168
    budget\.ramp_up\.start_tokens: .* is not a multiple of
recipe=bloom176b scale=full budget.ramp_up.increment_tokens=3_145_728
    increment_tokens: steps of 1,536 samples do not reach
precision.compute=float16
    precision\.loss_scale: none, but float16 gradients underflow
recipe=bloom560m precision.compute=bfloat16
    precision\.loss_scale: bfloat16 ignores a loss scale
scale=full precision.weights=bfloat16 precision.compute=auto
    precision.weights: bfloat16 cannot represent all
scale=full precision.weights=float16
    precision.weights: float16 cannot represent all
scale=full precision.master=float16
    precision.master: float16 cannot represent all
scale=full precision.weights=float32 precision.master=bfloat16
    precision.master: bfloat16 cannot represent all
scale=full precision.accumulate=float16
    precision.accumulate: float16 gradients underflow
scale=full precision.reduce=float16
    precision.reduce: float16 gradients underflow without
""",
        NORM=NORM,
    ),
)
def test_contradictions_are_refused_at_composition(words, message):
    assert_refused(words, message)


DECAY = {"warmup_from": 0.0, "start": 1.0, "end": 0.0, "total_tokens": 1_000}


@pytest.mark.parametrize(
    ("schedule", "changed", "message"),
    [
        ({"total_tokens": 9, "warmup_tokens": 1, "warmup_from": 0.5, "value": 0.5},
         {"warmup_from": 1.0}, r"^schedule\.warmup_from: 1\.0 is more than value 0\.5"),
        ({"total_tokens": 9, "warmup_tokens": 8}, {"warmup_tokens": 9},
         r"^schedule\.warmup_tokens: 9 is more than total_tokens - 1 = 8"),
        ({"total_tokens": 1_000, "warmup_tokens": 100, "planned_tokens": 1_000},
         {"planned_tokens": 999},
         r"^schedule\.planned_tokens: 999 is less than total_tokens \+ skipped_tokens = 1,000"),
        ({"total_tokens": 1_000, "planned_tokens": 1_500, "skipped_tokens": 500,
          "warmup_tokens": 100}, {"skipped_tokens": 501}, r"1,500 is less than .* = 1,501"),
        ({**DECAY, "warmup_tokens": 100, "decay_tokens": 900}, {"decay_tokens": 901},
         r"^schedule\.decay_tokens: 901 is more than total_tokens - warmup_tokens = 900"),
    ],
)  # fmt: skip
def test_lengths_of_a_schedule_are_consistent(schedule, changed, message):
    check_schedule(schedule)
    with pytest.raises(RecipeError, match=message):
        check_schedule(schedule | changed)


def test_the_last_row_may_be_padding() -> None:
    recipe = teuken("model.initialization.padding_row=4_095")
    assert recipe.decoder_spec.padded_vocab_size == 4_096


def test_a_miniature_keeps_experts_and_sends_each_token_to_several() -> None:
    for name in ("mula7b_a1b", "mula220b_a10b"):
        full, mini = (compose(name, *word).decoder_spec.mlp for word in (["scale=full"], []))
        assert (full.top_k, mini.top_k) == (8, 2)
        assert mini.num_experts == 16


def test_learned_positions_shrink_with_the_sequence() -> None:
    for words, expected in (((), 256), (("budget.sequence_length=128",), 128)):
        assert compose("gpt3b6", *words).decoder_spec.positions.num_positions == expected


def test_a_miniature_keeps_the_ramp_and_its_share() -> None:
    full, mini = compose("bloom176b", "scale=full"), compose("bloom176b")
    assert full.batch_ramp.start_samples == 192
    assert mini.batch_ramp.start_samples == mini.batch_ramp.full_samples // 2
    shares = [
        one.batch_ramp.ramp_samples * one.budget.sequence_length / one.budget.total_tokens
        for one in (full, mini)
    ]
    assert shares[1] == pytest.approx(shares[0], rel=0.02)


@pytest.mark.parametrize(
    "words",
    [("weights=bfloat16",), ("weights=float32",), ("master=bfloat16",), ("master=float64",)],
)
def test_weights_and_masters_may_be_finer(words: tuple[str, ...]) -> None:
    compose("teuken7b", "scale=full", *(f"precision.{word}" for word in words))


def test_float16_sums_need_float16_products() -> None:
    words = ("precision.accumulate=float16", "precision.reduce=float16")
    precision = compose("bloom560m", "scale=full", *words).precision
    assert (precision.accumulate, precision.reduce) == ("float16", "float16")


def test_a_source_that_reads_a_filler_text_takes_its_share() -> None:
    data = compose("bloom176b").data
    texts = [source.embedded for source in data.sources.values()]
    assert len(texts) == len(set(texts))
    assert data.shares["code"] > 0.6
    assert sum(data.shares.values()) == pytest.approx(1)


def test_a_run_that_ends_in_its_warm_up_still_learns_in_miniature() -> None:
    mini = compose("gpt175b")
    assert mini.schedule["warmup_tokens"] < mini.budget.total_tokens / 50
    assert mini.schedule["total_tokens"] == mini.budget.total_tokens


def test_a_miniature_keeps_a_prefix_of_a_longer_schedule() -> None:
    full, mini = compose("mula100b_a7b", "scale=full"), compose("mula100b_a7b")
    shares = [one.schedule["total_tokens"] / one.budget.total_tokens for one in (full, mini)]
    assert shares[1] == pytest.approx(shares[0], rel=0.001)
    clips = [
        one.optimizer["clip_after_tokens"] / one.budget.total_tokens for one in (full, mini)
    ]
    assert clips[1] == pytest.approx(clips[0], rel=0.001)
