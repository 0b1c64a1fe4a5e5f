"""Openly documented runs: what follows from several values of their scripts, cards and logs.

Values of a script are compared from `tests/recipes/facts`. Here are counts of
parameters, rates of steps and shares of mixtures, typed from the sources or counted from them.
"""

from itertools import pairwise
from typing import Any

import pytest

from components.build import build_node
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from tests.recipes.compositions import composed


def recipe(name: str) -> Recipe:
    return composed(name, "full")


SHAPES = {  # width, layers, heads, heads of keys and values, feed-forward, rows
    "smollm3_3b": (2_048, 36, 16, 4, 11_008, 128_256),
    "eurollm_1b7": (2_048, 24, 16, 8, 5_632, 128_000),
    "eurollm_9b": (4_096, 42, 32, 8, 12_288, 128_000),
    "salamandra_2b": (2_048, 24, 16, 16, 5_440, 256_000),
    "salamandra_7b": (4_096, 32, 32, 8, 11_008, 256_000),
    "lucie_7b": (4_096, 32, 32, 8, 12_288, 65_024),
    "viking_7b": (4_096, 32, 32, 32, 11_008, 131_072),
}
OLMO2 = {  # norms of queries and keys over all heads, and 74 rows more than pieces
    "olmo2_1b": (2_048, 16, 16, 16, 8_192, 100_352),
    "olmo2_7b": (4_096, 32, 32, 32, 11_008, 100_352),
    "olmo2_13b": (5_120, 40, 40, 40, 13_824, 100_352),
    "olmo2_32b": (5_120, 64, 40, 8, 27_648, 100_352),
    "olmo3_32b": (5_120, 64, 40, 8, 27_648, 100_352),
}


@pytest.mark.parametrize("name", [*SHAPES, *OLMO2])
def test_parameters_are_those_of_the_published_shape(name: str) -> None:
    """Matrices and norms of a Llama whose heads are 128 wide."""
    dim, layers, heads, kv, ffn, rows = SHAPES.get(name) or OLMO2[name]
    attention = 2 * dim * heads * 128 + 2 * dim * kv * 128
    layer = attention + 3 * dim * ffn + 2 * dim + (heads + kv) * 128 * (name in OLMO2)
    matrices = 1 if name == "smollm3_3b" else 2  # it ties the rows of both ends
    expected = layers * layer + dim + matrices * rows * dim
    assert recipe(name).derived_numbers.parameters.total == expected


def test_olmoes_parameters_follow_from_its_shape() -> None:
    dim, experts = 2_048, 64 * 3 * 2_048 * 1_024
    rest = 4 * dim**2 + 64 * dim + 4 * dim  # attention, router, four norms
    outside = dim + 2 * 50_304 * dim
    parameters = recipe("olmoe_1b7b").derived_numbers.parameters
    assert parameters.total == 16 * (rest + experts) + outside == 6_919_161_856
    assert parameters.active == 16 * (rest + experts // 8) + outside == 1_282_017_280


def test_olmo_hybrids_parameters_follow_from_its_shape() -> None:
    """As ``GatedDeltaNetConfig.num_params`` of OLMo-core counts."""
    dim, heads, keys, values = 3_840, 30, 30 * 96, 30 * 192
    matrices = dim * (2 * keys + 2 * values + 2 * heads) + values * dim
    delta = matrices + 2 * heads + 4 * (2 * keys + values) + 192
    attention = 4 * dim**2 + 2 * dim  # norms of queries and keys
    rest = 3 * dim * 11_008 + 2 * dim
    layers = 24 * (delta + rest) + 8 * (attention + rest)
    count = recipe("olmo_hybrid_7b").derived_numbers.parameters.total
    assert count == layers + dim + 2 * 100_352 * dim == 7_430_870_688


def test_nemotron_hs_parameters_follow_from_its_shape() -> None:
    dim, heads, groups, state, width = 4_096, 128, 8, 128, 64
    inner, shared = heads * width, groups * state
    mamba = dim * (2 * inner + 2 * shared + heads) + inner * dim  # in and out
    mamba += 5 * (inner + 2 * shared) + 3 * heads + inner  # convolution, decays, norm
    mlp, attention = 2 * dim * 21_504, 2 * dim * 32 * 128 + 2 * dim * 8 * 128
    layers = 24 * mamba + 24 * mlp + 4 * attention + 52 * dim
    count = recipe("nemotron_h_8b").derived_numbers.parameters.total
    assert count == layers + dim + 2 * 131_072 * dim == 8_100_852_736


def test_nanochats_parameters_follow_from_its_script() -> None:
    """scripts/base_train.py: depth 20, 64 a layer; no norm has weights."""
    count = 20 * 12 * 1_280**2 + 2 * 65_536 * 1_280
    assert recipe("nanochat_d20").derived_numbers.parameters.total == count == 560_988_160


@pytest.mark.parametrize(
    ("name", "card", "digit"),
    [("eurollm_1b7", 1_657_000_000, 1_000_000), ("eurollm_9b", 9_154_000_000, 2_000_000)],
)
def test_cards_state_the_count_to_their_digits(name: str, card: int, digit: int) -> None:
    assert abs(recipe(name).derived_numbers.parameters.total - card) < digit


def rate(name: str, step: int) -> float:
    """The rate of a step, counted from 0, while the batch does not change."""
    found = recipe(name)
    schedule: Any = build_node(to_plain(found.schedule), "schedule")
    return float(found.optimizer["lr"] * schedule(step * found.budget.global_batch_tokens))


# Rates by step. The second stage of OLMo 2 7B's configuration has 6.1499e-5; the cosine came to
# 6.1351e-5. OLMo 3 7B: HalfCosWithWarmup over 1,668,930 steps; the first 597,046 are skipped.
RATES = {
    "olmo2_7b": {2_000: 3.0e-4, 928_645: 6.1351e-5, 928_646: 6.1499e-5},
    "olmo2_1b": {1_907_358: 7.4487e-5, 1_907_359: 7.4487e-5},
    "olmo2_13b": {500: 4.5e-4, 1_000: 9.0e-4, 596_056: 9.0e-5, 596_057: 9.0e-5,
        596_057 + 11_921: 0.0},
    "olmo2_32b": {2_000: 6.0e-4, 721_900: 6.6232e-5, 721_901: 6.6232e-5, 721_901 + 11_921: 0.0},
    "olmo3_7b": {2_000: 3.0e-4, 597_046: 1.65e-4, 1_000_000: 8.98340e-5, 1_413_813: 3.93253e-5,
        1_413_814: 2.0712352850360292e-4},
    "olmo3_32b": {2_000: 6.0e-4, 655_999: 6.692e-5, 656_000: 2.071235285e-4,
        656_000 + 11_921 + 200: 2.071235285e-4},
    "olmo_hybrid_7b": {2_000: 3.0e-4, 1_414_077: 3.0e-5, 1_414_078: 2.0712352850360292e-4,
        1_414_078 + 11_921: 1.0356176425e-4, 1_437_920 + 200: 2.0712352850360292e-4,
        1_461_762: 0.0},
    "olmoe_1b7b": {1_250: 2.2e-4, 2_500: 4.0e-4, 1_192_093: 4.0e-5, 1_200_000: 4.0e-5,
        1_200_000 + 11_921: 2.0e-5},
    "smollm3_3b": {2_000: 2.0e-4, 4_198_000: 2.0e-4, 4_198_000 + 261_000: 1.0e-4,
        4_721_000: 2.0e-5, 4_740_000 + 1_000 + 10_500: 1.0e-5},
    "salamandra_7b": {2_000: 3.0e-4, 3_016_817: 3.0e-5},
    "salamandra_2b": {3_016_817: 2.0e-5},
    "viking_7b": {2_000: 3.0e-4},
    "opensci_1b7": {25_000: 4.0e-3, 71_526 - 14_305: 4.0e-3, 71_526: 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_rates_are_those_of_the_configurations(name: str) -> None:
    rates = {step: rate(name, step) for step in RATES[name]}
    assert rates == pytest.approx(RATES[name], rel=2e-5)


@pytest.mark.parametrize(
    ("step", "tokens", "logged"),
    [
        (1_865, 1_955_594_240, 7.161599933169782e-05),
        (3_790, 4_114_087_936, 1.5066239575389773e-04),
        (81_690, 302_494_515_200, 2.9409138349373977e-04),
        (236_656, 952_469_028_864, 2.4322151148226112e-04),
        (472_362, 1_941_091_647_488, 1.1498706589918545e-04),
        (753_851, 3_121_742_086_144, 2.9999999242136255e-05),
    ],
)
def test_lucies_ramp_and_rates_follow_its_log(step: int, tokens: int, logged: float) -> None:
    found = recipe("lucie_7b")
    assert found.batch_ramp.consumed_after(step) * found.budget.sequence_length == tokens
    schedule: Any = build_node(to_plain(found.schedule), "schedule")
    assert found.optimizer["lr"] * schedule(tokens) == pytest.approx(logged, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "step", "logged"),
    [
        ("lucie_7b_long", 25, 1.9999999494757503e-05),
        ("lucie_7b_long", 1_220, 1.9999999494757503e-05),
        ("lucie_7b_annealed", 25, 2.938559919130057e-05),
        ("lucie_7b_annealed", 600, 1.5254399841069244e-05),
        ("lucie_7b_annealed", 1_220, 1.727999965339677e-08),
    ],
)
def test_lucies_later_stages_follow_their_logs(name: str, step: int, logged: float) -> None:
    assert rate(name, step) == pytest.approx(logged, rel=1e-6)


def test_lucies_later_stages_begin_with_the_weights_of_the_stage_before() -> None:
    stages = [recipe(name) for name in ("lucie_7b", "lucie_7b_long", "lucie_7b_annealed")]
    for before, after in pairwise(stages):
        begins = after.start
        assert begins is not None
        assert (begins.recipe, begins.takes) == (before.name, "weights")
        assert begins.at_tokens == before.budget.total_tokens
        assert begins.fingerprint == compute_fingerprint(before)


def test_shares_of_later_phases_are_in_proportion_to_their_sources() -> None:
    smol = recipe("smollm3_3b").data
    assert len(smol.shares) == 41
    assert [len(phase.shares) for phase in smol.phases.values()] == [46, 56, 56, 57]
    assert smol.phases["decay"].shares["edu_python"] == pytest.approx(0.07 / 1.00565, abs=1e-6)
    (dolmino,) = recipe("olmo2_7b").data.phases.values()
    assert dolmino.shares["dclm_best"] == pytest.approx(24.31 / 51.472, abs=1e-6)
    (larger,) = recipe("olmo2_13b").data.phases.values()
    math = 191.58 + 9.03 + 1.08 + 17.06 + 1.23 + 1.51 + 84.22 + 2.21 + 782.58
    math = 2 * (math + 3_090 + 3_060 + 3_410 + 21.80 + 19.74) + 3_410
    other = 51_470 + 17_080 + 2 * 3_660 + 9_760 + 2 * 1_260
    assert larger.shares["math"] == pytest.approx(math / (math + other), abs=2e-6)
    assert recipe("olmo2_32b").data.phases["second"].shares == larger.shares
    olmoe = recipe("olmoe_1b7b").data.shares
    assert olmoe["arxiv"] == pytest.approx(21.1 / 4_068.29, abs=1e-6)
    assert olmoe["dclm"] == pytest.approx(3_860 / 4_068.29, abs=1e-6)
    assert "arxiv" not in recipe("mula7b_a1b").data.shares


def test_mixtures_are_the_published_sums() -> None:
    lucie = recipe("lucie_7b").data.shares
    french = sum(share for name, share in lucie.items() if name.startswith("fr_"))
    parallel = sum(share for name, share in lucie.items() if name.endswith("_parallel"))
    english = sum(share for name, share in lucie.items() if name.startswith("en_"))
    code = lucie["code"]
    found = (english, french - lucie["fr_en_parallel"], code, parallel)
    assert found == pytest.approx((0.332, 0.324, 0.147, 0.025), abs=6e-4)
    salamandra = recipe("salamandra_7b").data.shares
    assert len(salamandra) == 36  # 35 languages and code
    assert salamandra["en"] == pytest.approx(0.3925, abs=1e-4)
    assert recipe("salamandra_2b").data.shares == salamandra


# Weights of each phase: their sum, then by language; examples/towermoe/towermoe-400M-2.1B of
# github.com/deep-spin/Megatron-LM-pretrain.
TOWERMOE = {
    "annealing": (11_238, {"en": 3_251, "es": 607, "fr": 590, "de": 600, "zh": 350,
                           "ja": 250, "ko": 150, "ro": 100, "et": 80, "nor": 20, "ga": 10,
                           "code": 298, "math": 1_652}),
    "super_annealing": (27_951, {"en": 1_564, "it": 500, "ru": 210, "nl": 200, "tr": 100,
                                 "el": 56, "et": 42, "lv": 40, "nor": 11, "hr": 5, "code": 648,
                                 "long_code": 7_500, "math": 3_806, "instructions": 2_285,
                                 "long_texts": 7_625}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["euromoe_2b6_a0b6", "eurollm_1b7", "eurollm_9b"])
def test_eurollms_shares_are_the_weights_of_the_teams_later_scripts(name: str) -> None:
    data = recipe(name).data
    assert data.shares == recipe("euromoe_2b6_a0b6").data.shares
    assert list(data.phases) == [*TOWERMOE]
    assert [len(phase.shares) for phase in data.phases.values()] == [37, 40]  # 35 languages
    for phase, (total, weights) in zip(data.phases.values(), TOWERMOE.values(), strict=True):
        drawn = {language: phase.shares[language] for language in weights}
        expected = {language: weight / total for language, weight in weights.items()}
        assert drawn == pytest.approx(expected, abs=1.1e-6)


def test_flags_that_a_script_leaves_out_are_off() -> None:
    assert "z_loss" not in recipe("smollm3_3b").model  # z_loss_enabled: false, in its log
    assert not recipe("lucie_7b").data.document_mask
    assert not recipe("olmoe_1b7b").model["mlp"]["renormalize"]
    assert recipe("olmoe_1b7b").model["mlp"]["auxiliary_scope"] == "layer"


def test_smollm3s_largest_shares_are_in_proportion_to_its_weights() -> None:
    largest = sorted(recipe("smollm3_3b").data.shares.values(), reverse=True)[:4]
    weights = [0.37, 0.333, 0.025, 0.022]  # of the first stage's 41
    assert [share / largest[0] for share in largest] == pytest.approx(
        [weight / weights[0] for weight in weights], rel=1e-3
    )


def test_conflicts_of_sources_are_documented() -> None:
    """Where two figures are published, the recipe has one and says the other beside it."""
    salamandra = recipe("salamandra_7b")
    assert salamandra.published["total_tokens"].value == 12_875_000_000_000
    assert salamandra.budget.total_tokens == 3_016_817 * 4_194_304
    lucie = recipe("lucie_7b").published["device_hours"]
    assert "550,000" in lucie.unit
    assert "9.154 B" in recipe("eurollm_9b").published["parameters"].unit
    for name in ("eurollm_1b7", "eurollm_9b"):
        assert {"lr", "warmup_tokens", "phases", "optimizer", "shares", "layout"} <= {
            *recipe(name).assumed
        }


LENGTHS = ("8k", "16k", "32k", "64k")


def test_euromoes_parameters_follow_from_its_script() -> None:
    dim, layers, rows, experts, chosen = 1_024, 24, 128_000, 64, 8
    attention, expert = 2 * dim * dim + 2 * dim * 2 * 128, 3 * dim * 512
    rest = layers * (attention + experts * dim + 2 * dim) + dim + rows * dim
    parameters = recipe("euromoe_2b6_a0b6").derived_numbers.parameters
    assert parameters.total == rest + layers * experts * expert == 2_611_528_704
    assert parameters.active == rest + layers * chosen * expert == 497_599_488


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
def test_euromoes_phases_have_the_rates_of_their_scripts(step: int, expected: float) -> None:
    assert rate("euromoe_2b6_a0b6", step) == pytest.approx(expected, rel=1e-6)


def test_preludes_parameters_follow_from_its_configuration() -> None:
    dim, layers, rows, ffn = 4_096, 36, 262_144, 12_288
    attention = 2 * dim * 32 * 128 + 2 * dim * 8 * 128 + 2 * 128  # norms of queries and keys
    layer = attention + 3 * dim * ffn + 2 * dim
    total = layers * layer + dim + 2 * rows * dim
    prelude = recipe("prelude_9b")
    assert prelude.derived_numbers.parameters.total == total == 9_093_559_296
    assert "padded_vocab_size" in prelude.assumed


def test_preludes_rates_are_those_of_its_configuration() -> None:
    steps = {4_000: 3.5e-4, 1_192_093 - 238_476: 3.5e-4, 1_192_093 - 119_238: 1.75e-4}
    rates = {step: rate("prelude_9b", step) for step in steps}
    assert rates == pytest.approx(steps, rel=1e-6)
    assert rate("prelude_9b", 1_192_093) == 0.0


def test_preludes_decay_starts_as_in_its_configuration() -> None:
    """baby_9b_dense_anneal300b.yaml: 35,763 steps after step 953,312."""
    annealed, step = recipe("prelude_9b_annealed"), 2_048 * 4_096
    assert annealed.start is not None
    assert annealed.start.recipe == "prelude_9b"
    assert annealed.start.at_tokens == 953_312 * step
    assert annealed.derived_numbers.steps == 953_312 + 35_763
    rates = {step: rate("prelude_9b_annealed", step) for step in (953_312, 989_075)}
    assert rates == pytest.approx({953_312: 3.5e-4, 989_075: 0.0})


@pytest.mark.parametrize(("size", "warmup", "peak"), [("8b", 150, 1.1e-5), ("70b", 75, 1e-6)])
def test_apertus_long_stages_start_from_weights(size: str, warmup: int, peak: float) -> None:
    names = [f"apertus_{size}", *(f"apertus_{size}_{length}" for length in LENGTHS)]
    for before, name in pairwise(names):
        stage, parent = recipe(name), recipe(name).start
        assert parent is not None
        assert (parent.recipe, parent.takes) == (before, "weights")
        assert not stage.phases
        assert not stage.data.phases
        assert stage.data.loss_after_eod == name.endswith("64k")  # a flag is commented out
        rates = [rate(name, step) for step in (0, warmup, stage.derived_numbers.steps)]
        assert rates == pytest.approx([0.0, peak, peak], rel=1e-6)
