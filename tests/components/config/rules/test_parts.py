"""Rules between the numbers of a schedule, of a model's parts and of the loss scale."""

import pytest

from components.config.rules.check import check_schedule
from components.errors import RecipeError
from tests.components.config.conftest import Compose

PHASE = "schedule.phases.first"
CONSTANT = {
    "_target_": "components.optim.schedules.Constant",
    "total_tokens": 9,
    "warmup_tokens": 1,
    "warmup_from": 1.0,
    "value": 0.5,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"{PHASE}.total_tokens=1_000", f"{PHASE}.warmup_tokens=1_000"],
            rf"{PHASE}\.warmup_tokens: 1,000 is more than total_tokens - 1 = 999",
        ),
        (
            [f"{PHASE}.warmup_from=0.4", f"{PHASE}.start=0.3"],
            rf"{PHASE}\.warmup_from: 0\.4 is more than start 0\.3",
        ),
        (["schedule.phases={}"], r"schedule\.phases: .* at least 1 item .*\n  list at least 1"),
        (
            ["schedule.phases={a: 3}"],
            r"schedule\.phases\.a: 3 is not a class\n  set schedule\.phases\.a\._target_=",
        ),
        (["schedule.phases={a: {warmup_tokens: x}}"], r"schedule\.phases\.a: missing _target_"),
        (
            ["model.attention.head_dim=33"],
            r"head_dim: 33 is odd, but rotary.*\n.*32 or 34",
        ),
        (
            ["model.norm.bias=true"],
            r"model\.norm\.bias: true, but .*\n.*norm\.center=true",
        ),
        (
            ["model.attention.backends=[flash, sdpa]"],
            r"model\.attention\.backends\.1: input should be .*, got 'sdpa'\n  known: ",
        ),
        (
            [
                "model.attention.backends=[flash]",
                "data.document_mask=true",
                "cluster.device=xpu",
            ],
            r"model\.attention\.backends: \[flash\] has no kernel for bfloat16 attention with "
            r"documents, slopes or windows.* on xpu\n  add flex",
        ),
        (
            ["model.attention.windows=[8, half]"],
            r"model\.attention\.windows\[1\]: 'half' is neither a positive number of keys nor",
        ),
        (
            ["model.attention.windows=[8, 0]"],
            r"model\.attention\.windows\[1\]: 0 is neither a positive number of keys nor full",
        ),
        (
            ["model.attention.windows=8"],
            r"windows: input should be a valid tuple, got 8\n  write a list",
        ),
        (
            ["model.positions.local_base=10_000.0"],
            r"positions\.local_base: 10000 needs a layer with a window, but all are full",
        ),
        (
            [
                "model.attention.windows=[8, full]",
                "model.attention.backends=[flash]",
                "cluster.device=cuda",
            ],
            r"model\.attention\.backends: \[flash\] has no kernel for bfloat16 attention with "
            r"documents, slopes or windows.* on cuda\n  add flex",
        ),
        (
            [
                "model.attention.sinks=true",
                "model.attention.backends=[cudnn, flash]",
                "cluster.device=cuda",
            ],
            r"backends: \[cudnn, flash\] has no kernel for bfloat16 attention.* with sinks, "
            r"heads of \d+, on cuda\n  add flex",
        ),
        (
            ["model.mlp.swiglu_limit=7", "model.mlp.activation=gelu"],
            r"model\.mlp\.swiglu_limit: 7 has no effect without a SwiGLU\n  set .*gated=true",
        ),
        (
            ["model.mlp.linear_offset=1", "model.mlp.gated=false"],
            r"model\.mlp\.linear_offset: 1 has no effect without a SwiGLU",
        ),
        (
            ["model.initialization.padding_row=4_096"],
            r"padding_row: 4096 is not one of 4,096 rows\n  use 0 to 4,095, or null",
        ),
        (["model.initialization.padding_row=-1"], r"padding_row: -1 is not one of"),
        (
            ["precision=fp16", "precision.loss_scale.initial=0.5"],
            r"precision\.loss_scale\.initial: 0\.5 is less than loss_scale\.minimum 1",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_where_it_is_composed(
    compose: Compose, words: list[str], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        compose(*words)


def test_a_schedule_without_phases_is_held_to_the_same_rules() -> None:
    with pytest.raises(
        RecipeError, match=r"^schedule\.warmup_from: 1\.0 is more than value 0\.5"
    ):
        check_schedule(CONSTANT)
    check_schedule(CONSTANT | {"warmup_from": 0.5})
    with pytest.raises(
        RecipeError, match=r"^schedule\.warmup_tokens: 9 is more than total_tokens - 1 = 8"
    ):
        check_schedule(CONSTANT | {"warmup_from": 0.5, "warmup_tokens": 9})


def test_a_cosine_is_cut_before_its_end_not_after_it() -> None:
    lengths = {"total_tokens": 1_000, "warmup_tokens": 100, "planned_tokens": 1_000}
    check_schedule(lengths)
    message = (
        r"^schedule\.planned_tokens: 999 is less than total_tokens \+ skipped_tokens = 1,000\n"
    )
    with pytest.raises(RecipeError, match=message):
        check_schedule(lengths | {"planned_tokens": 999})
    check_schedule(lengths | {"planned_tokens": 1_500, "skipped_tokens": 500})
    with pytest.raises(RecipeError, match=r"1,500 is less than .* = 1,501"):
        check_schedule(lengths | {"planned_tokens": 1_500, "skipped_tokens": 501})


def test_a_decay_has_to_fit_into_what_the_warm_up_leaves() -> None:
    lengths = {"total_tokens": 1_000, "warmup_tokens": 100, "decay_tokens": 900}
    ends = {"warmup_from": 0.0, "start": 1.0, "end": 0.0}
    check_schedule(lengths | ends)
    message = r"^schedule\.decay_tokens: 901 is more than total_tokens - warmup_tokens = 900\n"
    with pytest.raises(RecipeError, match=message):
        check_schedule(lengths | ends | {"decay_tokens": 901})


@pytest.mark.parametrize("path", ["embedding_norm", "attention.qk_norm"])
def test_every_norm_of_a_model_is_held_to_the_rule(compose: Compose, path: str) -> None:
    norm = "_target_: components.model.norms.Norm, _partial_: true, eps: 1e-5, weight: true"
    with pytest.raises(RecipeError, match=rf"model\.{path}\.bias: true, but"):
        compose(f"model.{path}={{{norm}, bias: true, center: false}}")
    compose(f"model.{path}={{{norm}, bias: true, center: true}}")


def test_slow_pairs_of_llama_3_turn_less_than_fast_ones(compose: Compose) -> None:
    scaling = "_target_: components.model.rotary_scaling.Llama3Scaling, factor: 8.0"
    numbers = "low_frequency_factor: 4.0, high_frequency_factor: 4.0, original_tokens: 8"
    message = r"scaling\.low_frequency_factor: 4\.0 is not below high_frequency_factor 4\.0"
    with pytest.raises(RecipeError, match=message):
        compose(f"model.positions.scaling={{{scaling}, {numbers}}}")


def test_the_last_row_may_be_the_one_of_padding(compose: Compose) -> None:
    recipe = compose("model.initialization.padding_row=4_095")
    assert recipe.decoder_spec.padded_vocab_size == 4_096
