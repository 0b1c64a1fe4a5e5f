"""Experts, batch ramp-up and loss scaling: their rules, and what a miniature makes of them."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError


def compose(recipe: str, *words: str) -> Recipe:
    return compose_recipe(read_point([f"recipe={recipe}", *words]))


def test_a_miniature_keeps_experts_and_sends_each_token_to_several() -> None:
    for name in ("mula7b_a1b", "mula220b_a10b"):
        full, mini = (
            compose(name, "scale=full").decoder_spec.mlp,
            compose(name).decoder_spec.mlp,
        )
        assert (full.top_k, mini.top_k) == (8, 2)
        assert mini.num_experts == 16


def test_more_experts_a_token_than_there_are_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"model\.mlp\.top_k: 65 is more than model\.mlp\.num_experts 64"
    ):
        compose("mula7b_a1b", "scale=full", "model.mlp.top_k=65")


def test_learned_positions_shrink_with_the_sequence() -> None:
    assert compose("gpt3b6").decoder_spec.positions.num_positions == 256
    assert (
        compose("gpt3b6", "budget.sequence_length=128").decoder_spec.positions.num_positions
        == 128
    )


def test_a_ramp_stays_a_ramp_in_the_miniature_and_in_its_share() -> None:
    full, mini = compose("bloom176b", "scale=full"), compose("bloom176b")
    assert full.batch_ramp.start_samples == 192
    assert mini.batch_ramp.start_samples == mini.batch_ramp.full_samples // 2
    shares = [
        one.batch_ramp.ramp_samples * one.budget.sequence_length / one.budget.total_tokens
        for one in (full, mini)
    ]
    assert shares[1] == pytest.approx(shares[0], rel=0.02)


def test_a_ramp_that_the_data_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"budget\.ramp_up\.start_tokens: .* is not a multiple of"
    ):
        compose("bloom560m", "scale=full", "budget.ramp_up.start_tokens=391_168")


def test_increments_that_miss_the_full_batch_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"increment_tokens: steps of 1,536 samples do not reach"
    ):
        compose("bloom176b", "scale=full", "budget.ramp_up.increment_tokens=3_145_728")


def test_float16_needs_a_loss_scale_and_nothing_else_takes_one() -> None:
    with pytest.raises(
        RecipeError, match=r"precision\.loss_scale: none, but float16 gradients underflow"
    ):
        compose("teuken7b", "precision.compute=float16")
    with pytest.raises(
        RecipeError, match=r"precision\.loss_scale: bfloat16 ignores a loss scale"
    ):
        compose("bloom560m", "precision.compute=bfloat16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("weights=bfloat16", "compute=auto"),
            "weights: bfloat16 cannot represent all",
        ),
        (("weights=float16",), "weights: float16 cannot represent all"),
        (("master=float16",), "master: float16 cannot represent all"),
        (
            ("weights=float32", "master=bfloat16"),
            "master: bfloat16 cannot represent all",
        ),
        (("accumulate=float16",), "accumulate: float16 gradients underflow"),
        (("reduce=float16",), "reduce: float16 gradients underflow without"),
    ],
)
def test_no_dtype_is_coarser_than_what_it_holds(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=f"precision.{message}"):
        compose("teuken7b", "scale=full", *(f"precision.{word}" for word in words))


@pytest.mark.parametrize(
    "words",
    [("weights=bfloat16",), ("weights=float32",), ("master=bfloat16",), ("master=float64",)],
)
def test_weights_and_masters_may_be_finer(words: tuple[str, ...]) -> None:
    compose("teuken7b", "scale=full", *(f"precision.{word}" for word in words))


def test_float16_sums_go_with_float16_products() -> None:
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


def test_a_prefix_of_a_longer_schedule_stays_a_prefix() -> None:
    full, mini = compose("mula100b_a7b", "scale=full"), compose("mula100b_a7b")
    shares = [one.schedule["total_tokens"] / one.budget.total_tokens for one in (full, mini)]
    assert shares[1] == pytest.approx(shares[0], rel=0.001)
    clips = [
        one.optimizer["clip_after_tokens"] / one.budget.total_tokens for one in (full, mini)
    ]
    assert clips[1] == pytest.approx(clips[0], rel=0.001)
