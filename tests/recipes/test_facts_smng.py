"""The three GPT recipes: what follows from the scaling study's own scripts."""

import pytest

from tests.recipes.compositions import shown, value

HOMES = dict.fromkeys(("gpt3b6", "gpt20b", "gpt175b"), "smng_p2")


@pytest.mark.parametrize("name", HOMES)
def test_the_count_is_megatrons_formula(name: str) -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), equation 2, with its smaller terms."""
    model = value(name, "recipe.model")
    num_layers, dim = model["num_layers"], model["dim"]
    blocks = num_layers * (12 * dim**2 + 13 * dim)
    ends = (50_257 + 2_048) * dim + 2 * dim
    assert value(name, "derived.parameters.total") == blocks + ends
    rows = model["padded_vocab_size"] - 50_257
    assert value(name, "derived.parameters.padding") == rows * dim


def test_flops_of_a_sequence_are_the_sheets() -> None:
    """2.205e15 for 175B without recomputation, all of the attention matrix counted."""
    flops = value("gpt175b", "derived.flops_per_token.full") * 2_048
    assert f"{flops:.3e}" == "2.205e+15"


def test_weak_and_strong_scaling_are_two_overrides_away() -> None:
    weak = ("cluster=smng_p2", "parallelism.data=8", "budget.global_batch_tokens=4915200")
    assert shown("gpt175b", *weak)["derived"]["ranks"] == 1_024
    strong = ("cluster=smng_p2", "parallelism.data=8", "budget.global_batch_tokens=5160960")
    derived = shown("gpt175b", *strong)["derived"]
    assert (derived["samples_per_step"], derived["microbatches_per_step"]) == (2_520, 105)


@pytest.mark.parametrize(
    ("figure", "published"),
    [
        ("tflops_per_device", 57),
        ("peak_fraction", 0.10),
        ("weak_scaling_efficiency", 0.93),
        ("strong_scaling_efficiency", 0.82),
    ],
)
def test_only_the_largest_carries_the_figures_measured_on_it(
    figure: str, published: float
) -> None:
    assert value("gpt175b", f"recipe.published.{figure}.value") == published
    assert figure not in value("gpt3b6", "recipe.published")
    assert figure not in value("gpt20b", "recipe.published")


@pytest.mark.parametrize("name", HOMES)
def test_what_no_source_gives_is_marked_as_assumed(name: str) -> None:
    assumed = value(name, "recipe.assumed")
    assert list(assumed) == ["held_out_fraction"]
    fraction = value(name, "recipe.data.held_out_fraction")
    assert assumed["held_out_fraction"]["value"] == fraction
