"""The sizes of a new recipe follow the rules that its comments name."""

import math
from typing import Any

import pytest

from command.composition.conf_groups import compose_group
from command.new_recipe.sizes import Sizes, choose_shape, choose_sizes

FAMILY = "llama_125m"
MULTIPLIERS = {"_target_": "components.model.parametrization.Multipliers", "_partial_": True}
MUP = {"_target_": "components.model.parametrization.MuP", "_partial_": True, "base_dim": 64}


def sizes_of(text_tokens: int, **given: Any) -> Sizes:
    asked = {"num_documents": None, "parameters": None} | given
    return choose_sizes(compose_group("model", FAMILY), text_tokens=text_tokens, **asked)


@pytest.mark.parametrize("parameters", ["15m", "60m", "125m", "350m", "1b"])
def test_a_family_has_the_shapes_of_the_rules(parameters: str) -> None:
    base = compose_group("model", FAMILY)
    model = compose_group("model", f"llama_{parameters}")
    number = float(parameters[:-1]) * (1e9 if parameters.endswith("b") else 1e6)
    shape = choose_shape(base, round(number), 32_000)
    shape.pop("initialization", None)  # theirs is that of the published small models
    for key, value in shape.items():
        found = {k: model[key][k] for k in value} if isinstance(value, dict) else model[key]
        assert found == value, key


def test_a_short_text_is_read_at_most_four_times() -> None:
    short = sizes_of(100_000, pieces=1_024, parameters=10_000_000)
    assert 3.5 < short.num_epochs <= 4
    assert short.total_tokens < short.wanted_tokens
    long = sizes_of(10**10, pieces=32_768, parameters=125_000_000)
    assert long.total_tokens == pytest.approx(2.5e9, rel=0.01)
    chosen = sizes_of(10**8, pieces=32_768)
    assert chosen.parameters == pytest.approx(10**8 * 4 / 20, rel=0.1)
    narrow = sizes_of(10**6, pieces=1_024, parameters=1_000_000)
    # Below the fitted range the rate stays, but it is lower for wide models with small batches.
    fitted_lr = 0.3118 * 1e17**-0.125
    assert narrow.lr == pytest.approx(fitted_lr)
    assert short.lr == pytest.approx(fitted_lr * (192 / short.model["dim"]) ** 2)
    flops = 6 * (chosen.parameters - 32_768 * chosen.model["dim"]) * chosen.total_tokens
    batch_share = (flops / 1e17) ** 0.3271  # of the law's batches
    assert chosen.lr == pytest.approx(fitted_lr * math.sqrt(batch_share), rel=0.01)
    assert long.lr < chosen.lr < narrow.lr
    flops = 6 * (long.parameters - 32_768 * 768) * long.total_tokens
    assert long.lr == pytest.approx(0.3118 * flops**-0.125, rel=0.01)
    # The second moment averages over as many tokens as with 0.95 at the law's batch.
    law_half_life = math.log(2) / -math.log(0.95) * 0.2920 * flops**0.3271
    half_life = math.log(2) / -math.log(long.beta2) * long.batch_tokens
    assert half_life == pytest.approx(law_half_life, rel=0.02)
    assert short.beta2 == 0.99
    for sizes in (short, long, chosen):
        assert sizes.batch_tokens % sizes.sequence_length == 0
        assert sizes.total_tokens % sizes.batch_tokens == 0
        assert 0 < sizes.warmup_tokens < sizes.total_tokens


@pytest.mark.parametrize(("parameters", "std"), [(500_000, 0.056), (1_000_000, 0.046)])
def test_narrow_model_has_larger_first_weights(parameters: int, std: float) -> None:
    shape = choose_shape(compose_group("model", FAMILY), parameters, 512)
    assert shape["initialization"]["std"] == std == round((2 / (5 * shape["dim"])) ** 0.5, 3)


@pytest.mark.parametrize(
    ("parametrization", "is_raised"), [(None, True), (MULTIPLIERS, True), (MUP, False)]
)
def test_only_a_parametrization_by_width_keeps_small_first_weights(parametrization, is_raised):
    """MuP scales the first weights with the width. Multipliers do not change them."""
    model = compose_group("model", FAMILY) | {"parametrization": parametrization}
    assert ("initialization" in choose_shape(model, 10**6, 512)) == is_raised


def test_a_wide_model_has_the_initial_weights_of_its_family() -> None:
    base = compose_group("model", FAMILY)
    assert "initialization" not in choose_shape(base, 10**9, 32_768)
    base["initialization"]["std"] = "fan_in"
    assert "initialization" not in choose_shape(base, 10**6, 512)


@pytest.mark.parametrize(
    ("text_tokens", "steps"), [(10_000, 0), (30_000, 40), (650_000, 40), (50_000_000, 303)]
)
def test_a_warm_up_has_forty_steps_or_a_quarter_of_them(text_tokens: int, steps: int) -> None:
    sizes = sizes_of(text_tokens, pieces=512)
    steps = steps or sizes.num_steps // 4  # of a run of fewer than 160 steps
    assert sizes.warmup_tokens == steps * sizes.batch_tokens
    assert (sizes.num_steps < 160) == (text_tokens == 10_000)


@pytest.mark.parametrize(
    ("num_documents", "fraction"),
    [(None, 0.005), (10**6, 0.005), (1_280, 0.05), (100, 0.1), (1, 0.1)],
)
def test_few_documents_have_a_larger_held_out_fraction(
    num_documents: int | None, fraction: float
) -> None:
    sizes = sizes_of(10**8, pieces=512, parameters=10**6, num_documents=num_documents)
    assert sizes.held_out_fraction == fraction


@pytest.mark.parametrize(
    ("parameters", "pieces", "text_tokens", "length", "sequences"),
    [
        (500_000, 512, 500_000, 128, 32),
        (1_000_000, 512, 650_000, 256, 16),
        (4_000_000, 2_048, 2_600_000, 256, 32),
        (4_000_000, 2_048, 80_000_000, 512, 32),
        (60_000_000, 32_768, 10**9, 2_048, 64),
    ],
)
def test_batch_has_enough_sequences_for_every_kind_of_text(
    parameters: int, pieces: int, text_tokens: int, length: int, sequences: int
) -> None:
    sizes = sizes_of(text_tokens, pieces=pieces, parameters=parameters)
    assert (sizes.sequence_length, sizes.batch_tokens) == (length, length * sequences)
