"""The five playbook recipes: what follows from their values, and what was measured."""

import pytest

from tests.recipes.compositions import value

NAMES = ("playbook1b", "playbook3b", "playbook8b", "playbook80b", "playbook469b")
HOMES = dict.fromkeys(NAMES, "hopper")

# Parameters as the table has them, in billions.
PARAMETERS = {
    "playbook1b": "1.34",
    "playbook3b": "3.57",
    "playbook8b": "8.86",
    "playbook80b": "80",
    "playbook469b": "469",
}
# Tokens a second and GPU, model TFLOP/s, GiB reserved, as measured of the layout.
MEASURED = {
    "playbook1b": (40_149.94, 388.0, 50.18),
    "playbook3b": (16_426.09, 421.64, 56.87),
    "playbook8b": (7_503.28, 422.97, 63.07),
    "playbook80b": (250.45, 126.66, 50.46),
    "playbook469b": (14.5,),
}
# GFLOP a token by the campaign's rule, 6 N + 12 x layers x dim x sequence.
GIGAFLOPS = {
    "playbook1b": 9.655,
    "playbook3b": 25.66,
    "playbook8b": 59.63,
    "playbook80b": 512.2,
}
ASSUMED = {"shares": "recipe.data.shares", "held_out_fraction": "recipe.data.held_out_fraction"}


@pytest.mark.parametrize("name", NAMES)
def test_the_count_is_the_tables(name: str) -> None:
    digits = len(PARAMETERS[name].replace(".", ""))
    total = value(name, "derived.parameters.total")
    assert f"{total / 1e9:.{digits}g}" == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_takes_a_million_tokens_a_step(name: str) -> None:
    degrees = value(name, "recipe.parallelism")
    microbatches = value(name, "derived.microbatches_per_step")
    assert degrees["data"] * degrees["microbatch_sequences"] * microbatches * 4_096 == 2**20
    assert microbatches >= degrees["pipeline"] - 1


@pytest.mark.parametrize("name", NAMES)
def test_each_size_carries_what_was_measured_of_its_layout(name: str) -> None:
    published, degrees = value(name, "recipe.published"), value(name, "recipe.parallelism")
    figures = ("tokens_per_second_per_device", "tflops_per_device", "memory_bytes")
    rate, *others = (published[figure]["value"] for figure in figures if figure in published)
    assert (rate, *others[:1], *(round(x / 2**30, 2) for x in others[1:])) == MEASURED[name]
    assert published["layout"]["value"] == (
        f"data {degrees['data']}, tensor {degrees['tensor']}, pipeline {degrees['pipeline']}, "
        f"ZeRO {degrees['zero']}, microbatch {degrees['microbatch_sequences']}"
    )
    ranks = degrees["data"] * degrees["tensor"] * degrees["pipeline"]
    assert published["devices"]["value"] == value(name, "derived.ranks") == ranks


@pytest.mark.parametrize("name", GIGAFLOPS)
def test_flops_a_token_are_the_campaigns_less_the_look_up(name: str) -> None:
    """Its rule takes an untied embedding for a product; its counts are off by 0.1 %."""
    model = value(name, "recipe.model")
    look_up = 0 if model["tied_embeddings"] else 6 * 131_072 * model["dim"]
    flops = value(name, "derived.flops_per_token.full") + look_up
    assert flops / 1e9 == pytest.approx(GIGAFLOPS[name], rel=1e-3)


@pytest.mark.parametrize("name", [name for name, row in MEASURED.items() if row[1:]])
def test_rate_and_flops_a_token_give_the_measured_teraflops(name: str) -> None:
    """Within a fifth of a per cent: nanotron counts no norms."""
    rate, teraflops, _ = MEASURED[name]
    flops = value(name, "derived.flops_per_token.full")
    assert rate * flops / 1e12 == pytest.approx(teraflops, rel=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_what_no_source_gives_is_marked_as_assumed(name: str) -> None:
    assumed = value(name, "recipe.assumed")
    assert sorted(assumed) == sorted(ASSUMED)
    assert {key: assumed[key]["value"] for key in ASSUMED} == {
        key: value(name, path) for key, path in ASSUMED.items()
    }
