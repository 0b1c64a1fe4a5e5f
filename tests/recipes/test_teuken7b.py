"""Teuken-7B: what follows from the values of its script, and what no source gives."""

from typing import Any

import pytest

from command.arguments import ROOT
from tests.recipes.compositions import composed_tree

# GF a token in the sheet's own rounding, full and causal attention.
FLOPS_PER_TOKEN = {"full": 51.16, "causal": 47.94}
# Accuracy over 21 languages, of the card of v0.6.
EU21 = {"arc": 0.558, "hellaswag": 0.619, "truthfulqa": 0.449, "mmlu": 0.453}
LANGUAGES = sorted(file.stem for file in (ROOT / "corpora" / "eu24").glob("*.txt"))


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    return composed_tree("teuken7b", "full")


def test_flops_per_token_equal_the_fact_sheet_in_both_conventions(
    shown: dict[str, Any],
) -> None:
    flops = shown["derived"]["flops_per_token"]
    assert {name: round(value / 1e9, 2) for name, value in flops.items()} == FLOPS_PER_TOKEN


def test_the_mixture_has_24_languages_and_60_percent_not_english(shown: dict[str, Any]) -> None:
    shares = shown["recipe"]["data"]["shares"]
    assert sorted(shares) == LANGUAGES
    assert 1 - shares["en"] == pytest.approx(0.6)
    assert sum(shares.values()) == pytest.approx(1)


def test_what_no_source_gives_is_marked_as_assumed(shown: dict[str, Any]) -> None:
    recipe = shown["recipe"]
    assumed = recipe["assumed"]
    assert assumed["language_shares"]["value"] == recipe["data"]["shares"]
    first = recipe["schedule"]["phases"]["first"]
    assert assumed["warmup_tokens"]["value"] == first["warmup_tokens"]
    assert not set(assumed) & set(recipe["published"])
    # FineWeb-Edu joins the second phase; the recipe says that no share changes with it.
    assert "FineWeb-Edu" in assumed["second_phase_shares"]["reason"]
    assert recipe["data"]["phases"] == {}


def test_scores_and_bytes_equal_card_and_index(shown: dict[str, Any]) -> None:
    published = shown["recipe"]["published"]
    scores = [published[f"score_{task}"]["value"] for task in EU21]
    assert scores == pytest.approx([100 * score for score in EU21.values()])
    assert published["score_average"]["value"] == round(sum(scores) / len(scores)) == 52
    total = shown["derived"]["parameters"]["total"]
    assert published["weights_bytes"]["value"] == 2 * total == 14_905_450_496
