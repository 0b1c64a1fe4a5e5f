"""Every recipe: composes at every scale, has a golden row, and counts what it builds."""

import pytest
import torch

from benchmarks.recipes import recipe_tree
from command.actions.show import WORKS
from command.arguments import ROOT
from components.build import build_node
from tests.recipes.compositions import RECIPES, SCALES, at_home, composed, composed_tree
from tests.recipes.differences import (
    CITED,
    GOLDEN,
    as_text,
    nested,
    own_leaves,
    shared_by_most,
    shared_leaves,
    without_citations,
)
from tests.recipes.golden_files import check_table, check_text
from tests.recipes.identity import identity_row

TABLE = GOLDEN / "recipes.csv"
# Recipes whose own values are a golden file: dense, a mixture of experts, phases.
WHOLE = (
    ("teuken7b", "full"),
    ("teuken7b", "mini"),
    ("mula7b_a1b", "full"),
    ("olmo3_7b", "full"),
)


@pytest.mark.parametrize("scale", SCALES)
def test_values_of_most_recipes_are_the_base_of_their_scale(scale: str) -> None:
    text = as_text(without_citations(shared_by_most(scale)))
    check_text(GOLDEN / f"base-{scale}.yaml", text)


@pytest.mark.parametrize(("name", "scale"), WHOLE)
def test_the_composed_recipe_is_its_golden_file(name: str, scale: str) -> None:
    tree = composed_tree(name, scale)
    own = own_leaves(tree if scale == "full" else without_citations(tree), shared_leaves(scale))
    check_text(GOLDEN / f"{name}-{scale}.yaml", as_text(nested(own)))


def test_every_composed_recipe_is_its_row_of_the_golden_table() -> None:
    rows = [identity_row(name, scale) for name in RECIPES for scale in SCALES]
    check_table(TABLE, rows, ("recipe", "scale"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_miniature_cites_what_its_recipe_cites(name: str) -> None:
    full, mini = (composed_tree(name, scale)["recipe"] for scale in SCALES)
    assert {key: mini[key] for key in CITED} == {key: full[key] for key in CITED}


def test_every_recipe_cites_works_and_every_work_is_cited() -> None:
    cited = {name: composed_tree(name, "full")["recipe"]["citations"] for name in RECIPES}
    assert all(cited.values())
    assert set().union(*cited.values()) == {file.stem for file in WORKS.glob("*.bib")}


def test_no_golden_file_is_left_without_its_recipe() -> None:
    expected = {f"{name}-{scale}.yaml" for name, scale in WHOLE}
    expected |= {f"base-{scale}.yaml" for scale in SCALES} | {TABLE.name, "losses.csv"}
    assert {file.name for file in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_arithmetic_counts_what_is_built(name: str, scale: str) -> None:
    recipe = composed(name, scale)
    with torch.device("meta"):
        model = build_node(recipe.model, "model")
    built = sum(parameter.numel() for parameter in model.parameters())
    counts = recipe.derived_numbers.parameters
    assert built == counts.total + counts.padding


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_like_its_file_and_lives_on_a_known_cluster(name: str) -> None:
    tree = recipe_tree(name)
    assert tree["name"] == name
    assert (ROOT / "conf" / "cluster" / f"{tree['reference_cluster']}.yaml").is_file()
    assert at_home(name).scale.name == "full"


@pytest.mark.parametrize("name", RECIPES)
def test_published_figures_have_sources_and_assumed_values_reasons(name: str) -> None:
    recipe = composed(name, "full")
    assert all(figure.source for figure in recipe.published.values())
    assert all(len(value.reason) > 20 for value in recipe.assumed.values())
    assert recipe.published["parameters"].value == recipe.derived_numbers.parameters.total
