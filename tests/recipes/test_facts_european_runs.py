"""EuroMoE, Prelude and Apertus' stages of long context, value by value against their scripts.

Figures are typed from the scripts that each recipe names, or counted here from their shapes.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from components.build import build
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from tests.recipes.differences import composed


@cache
def recipe(name: str) -> Recipe:
    return composed(name, "full")


def rate(name: str, step: int) -> float:
    composed_recipe = recipe(name)
    schedule: Any = build(thaw(composed_recipe.schedule), "schedule")
    tokens = step * composed_recipe.budget.global_batch_tokens
    return float(composed_recipe.optimizer["lr"] * schedule(tokens))


def test_euromoes_parameters_follow_from_its_script() -> None:
    dim, layers, rows, experts, chosen = 1_024, 24, 128_000, 64, 8
    attention, expert = 2 * dim * dim + 2 * dim * 2 * 128, 3 * dim * 512
    rest = layers * (attention + experts * dim + 2 * dim) + dim + rows * dim
    parameters = recipe("euromoe_2b6_a0b6").derived.parameters
    assert parameters.total == rest + layers * experts * expert == 2_611_528_704
    assert parameters.active == rest + layers * chosen * expert == 497_599_488


def test_euromoes_model_and_layout_are_those_of_its_scripts() -> None:
    euromoe = recipe("euromoe_2b6_a0b6")
    mlp, layout = euromoe.model["mlp"], euromoe.parallelism
    assert (mlp["auxiliary_loss"], mlp["z_loss"], mlp["renormalize"]) == (0.01, 0.001, True)
    assert euromoe.model["positions"]["base"] == 500_000.0
    assert euromoe.model["initialization"]["std"] == 0.006
    assert (layout.data, layout.tensor, layout.pipeline, layout.expert) == (512, 1, 1, 1)
    assert (layout.zero, layout.microbatch_sequences) == (1, 4)
    assert euromoe.budget.seed == 42
    keys = ("beta1", "beta2", "eps", "weight_decay", "clip_norm")
    assert tuple(euromoe.optimizer[key] for key in keys) == (0.9, 0.95, 1e-8, 0.1, 1.0)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (2_500, 3.0e-4),
        (500_000, 3.0e-4),
        (500_000 + 13_411, 1.65e-4),
        (526_822, 3.0e-5),
        (533_497, 0.0),
    ],
)
def test_euromoes_three_phases_have_the_rates_of_their_scripts(
    step: int, expected: float
) -> None:
    assert rate("euromoe_2b6_a0b6", step) == pytest.approx(expected, rel=1e-6)


def test_euromoes_data_phases_begin_where_its_scripts_change() -> None:
    euromoe, eurollm = recipe("euromoe_2b6_a0b6"), recipe("eurollm_9b")
    starts = [phase.from_tokens for phase in euromoe.data.phases.values()]
    assert starts == [500_000 * 16_777_216, 526_822 * 16_777_216]
    assert euromoe.data.shares == eurollm.data.shares
    assert euromoe.derived.steps == 500_000 + 26_822 + 6_675


def test_preludes_parameters_follow_from_its_configuration() -> None:
    dim, layers, rows, ffn = 4_096, 36, 262_144, 12_288
    attention = 2 * dim * 32 * 128 + 2 * dim * 8 * 128 + 2 * 128  # norms of queries and keys
    layer = attention + 3 * dim * ffn + 2 * dim
    total = layers * layer + dim + 2 * rows * dim
    prelude = recipe("prelude_9b")
    assert prelude.derived.parameters.total == total == 9_093_559_296
    assert "padded_vocab_size" in prelude.assumed


def test_preludes_training_is_that_of_its_configuration() -> None:
    prelude = recipe("prelude_9b")
    assert prelude.budget.global_batch_tokens == 2_048 * 4_096
    assert prelude.derived.steps == 1_192_093
    assert prelude.derived.ranks == 256 * 4
    layout = prelude.parallelism
    assert (layout.tensor, layout.data, layout.sequence_parallel) == (4, 256, True)
    keys = ("beta1", "beta2", "eps", "weight_decay", "clip_norm")
    assert tuple(prelude.optimizer[key] for key in keys) == (0.9, 0.95, 1e-8, 0.1, 1.0)
    steps = {4_000: 3.5e-4, 1_192_093 - 238_476: 3.5e-4, 1_192_093 - 119_238: 1.75e-4}
    rates = {step: rate("prelude_9b", step) for step in steps}
    assert rates == pytest.approx(steps, rel=1e-6)
    assert rate("prelude_9b", 1_192_093) == 0.0


def test_preludes_decay_branches_off_where_its_configuration_says() -> None:
    """baby_9b_dense_anneal300b.yaml: 35,763 steps after step 953,312."""
    annealed, step = recipe("prelude_9b_annealed"), 2_048 * 4_096
    assert annealed.parent is not None
    assert annealed.parent.recipe == "prelude_9b"
    assert annealed.parent.at_tokens == 953_312 * step
    assert annealed.derived.steps == 953_312 + 35_763
    rates = {step: rate("prelude_9b_annealed", step) for step in (953_312, 989_075)}
    assert rates == pytest.approx({953_312: 3.5e-4, 989_075: 0.0})


def test_preludes_shares_are_the_sums_of_its_mixture_file() -> None:
    shares = recipe("prelude_9b").data.shares
    expected = {
        "dclm": 0.324,
        "nemotron_cc": 0.054 + 0.13144 + 0.054,
        "en_pdfs": 0.106376 + 0.014184,
        "starcoder": 0.072,
        "megamath": 0.002 + 0.002,
        "ka": 0.003607 + 0.000087 + 0.011542 + 0.007849,
        "sq": 0.000611 + 0.000047 + 0.002058 + 0.0014,
        "lv": 0.000592 + 0.000056 + 0.002026 + 0.001377,
        "de": 0.000015 + 0.001681 + 0.0053 + 0.003604,
        "ga": 0.000362 + 0.001208 + 0.000846,
    }
    assert {name: shares[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert len(shares) == 9 + 36


# length, sequences, steps, base, tensor, context, pipeline, devices, steps between checkpoints
STAGES = {
    "apertus_8b_8k": (8_192, 1_024, 9_350, 1e6, 2, 1, 1, 1_024, 500),
    "apertus_8b_16k": (16_384, 512, 6_930, 2e6, 4, 1, 1, 2_048, 500),
    "apertus_8b_32k": (32_768, 256, 7_000, 4e6, 4, 2, 1, 2_048, 250),
    "apertus_8b_64k": (65_536, 128, 3_480, 12e6, 4, 4, 1, 2_048, 125),
    "apertus_70b_8k": (8_192, 2_048, 4_680, 1e6, 4, 1, 8, 2_048, 250),
    "apertus_70b_16k": (16_384, 1_024, 3_470, 2e6, 4, 2, 8, 2_048, 250),
    "apertus_70b_32k": (32_768, 512, 3_500, 4e6, 4, 4, 8, 2_048, 250),
    "apertus_70b_64k": (65_536, 256, 1_742, 8e6, 4, 8, 8, 1_024, 50),
}


@pytest.mark.parametrize("name", STAGES)
def test_apertus_long_stages_are_those_of_their_scripts(name: str) -> None:
    stage = recipe(name)
    layout, batch = stage.parallelism, stage.budget.global_batch_tokens
    drawn = (
        stage.budget.sequence_length,
        batch // stage.budget.sequence_length,
        stage.derived.steps,
        stage.model["positions"]["base"],
        layout.tensor,
        layout.context,
        layout.pipeline,
        stage.derived.ranks,
        stage.checkpoint.every_tokens // batch,
    )
    assert drawn == STAGES[name]
    assert layout.microbatch_sequences == 1
    assert not stage.phases
    assert not stage.data.phases
    masks = not name.endswith("64k")  # three flags are commented out in the last script
    assert (stage.data.document_mask, not stage.data.loss_after_eod) == (masks, masks)
    assert stage.data.goldfish is not None


@pytest.mark.parametrize(("size", "warmup", "peak"), [("8b", 150, 1.1e-5), ("70b", 75, 1e-6)])
def test_apertus_long_stages_start_over_from_weights(
    size: str, warmup: int, peak: float
) -> None:
    names = [f"apertus_{size}", *(name for name in STAGES if f"_{size}_" in name)]
    for before, name in pairwise(names):
        stage, parent = recipe(name), recipe(name).parent
        assert parent is not None
        assert (parent.recipe, parent.takes) == (before, "weights")
        assert (
            stage.optimizer["alpha_warmup_tokens"] == 100_000 * stage.budget.global_batch_tokens
        )
        rates = [rate(name, step) for step in (0, warmup, stage.derived.steps)]
        assert rates == pytest.approx([0.0, peak, peak], rel=1e-6)
