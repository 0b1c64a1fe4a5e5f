"""EuroMoE, Prelude and Apertus' stages of long context: counts, rates, and how stages start.

Values of a script are compared from `tests/recipes/facts`; here are the values that
follow from several of them.
"""

from itertools import pairwise

import pytest

from tests.recipes.test_facts_open_runs import rate, recipe

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


def test_preludes_decay_branches_off_where_its_configuration_says() -> None:
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
