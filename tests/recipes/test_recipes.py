"""Every recipe: composes at every scale, has a golden file, and counts what it builds."""

import json
import os

import pytest
import torch

from benchmarks.recipes import recipe_tree
from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from components.build import build
from components.config.fingerprint import compute_fingerprint
from tests.recipes.differences import (
    CITED,
    GOLDEN,
    RECIPES,
    SCALES,
    as_text,
    composed,
    composed_tree,
    difference,
    golden_tree,
    read,
    shared_by_most,
    without_citations,
)

AGAIN = "read the difference, then `make golden`"
FINGERPRINTS = GOLDEN / "fingerprints.json"


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) >= 20
    assert "teuken7b" in RECIPES


@pytest.mark.parametrize("scale", SCALES)
def test_what_most_recipes_share_is_the_base_of_their_scale(scale: str) -> None:
    file = GOLDEN / f"base-{scale}.yaml"
    text = as_text(without_citations(shared_by_most(scale)))
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text, AGAIN


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_the_composed_recipe_is_its_golden_file(name: str, scale: str) -> None:
    tree = composed_tree(name, scale)
    own = tree if scale == "full" else without_citations(tree)
    text = as_text(difference(own, read(f"base-{scale}")))
    file = GOLDEN / f"{name}-{scale}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text, AGAIN
    assert golden_tree(name, scale) == tree


@pytest.mark.parametrize("name", RECIPES)
def test_a_miniature_cites_what_its_recipe_cites(name: str) -> None:
    full, mini = (composed_tree(name, scale)["recipe"] for scale in SCALES)
    assert {key: mini[key] for key in CITED} == {key: full[key] for key in CITED}


def test_the_fingerprints_are_those_of_the_golden_file() -> None:
    found = {
        f"{name}-{scale}": compute_fingerprint(composed(name, scale))
        for name in RECIPES
        for scale in SCALES
    }
    text = json.dumps(found, indent=1) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        FINGERPRINTS.write_text(text, "utf-8")
    assert FINGERPRINTS.read_text("utf-8") == text, AGAIN


def test_no_golden_file_is_left_without_its_recipe() -> None:
    expected = {f"{name}-{scale}.yaml" for name in [*RECIPES, "base"] for scale in SCALES}
    assert {file.name for file in GOLDEN.iterdir()} == {*expected, FINGERPRINTS.name}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_arithmetic_counts_what_is_built(name: str, scale: str) -> None:
    recipe = composed(name, scale)
    with torch.device("meta"):
        model = build(recipe.model, "model")
    built = sum(parameter.numel() for parameter in model.parameters())
    counts = recipe.derived.parameters
    assert built == counts.total + counts.padding


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_like_its_file_and_lives_on_a_known_cluster(name: str) -> None:
    tree = recipe_tree(name)
    assert tree["name"] == name
    assert (ROOT / "conf" / "cluster" / f"{tree['home']}.yaml").is_file()
    home = compose_recipe(read_point([f"recipe={name}", f"cluster={tree['home']}"]))
    assert home.scale.name == "full"


@pytest.mark.parametrize("name", RECIPES)
def test_every_published_figure_has_a_source_and_every_assumed_value_a_reason(
    name: str,
) -> None:
    recipe = composed(name, "full")
    assert all(figure.source for figure in recipe.published.values())
    assert all(len(value.reason) > 20 for value in recipe.assumed.values())
    assert recipe.published["parameters"].value == recipe.derived.parameters.total
