"""Every recipe: composes at every scale, has a golden row, and counts what it builds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from benchmarks.recipes import recipe_tree
from command.arguments import ROOT
from components.build import build_node
from tests.recipes.compositions import RECIPES, SCALES, at_home, composed, composed_tree
from tests.recipes.differences import (
    CITED,
    GOLDEN,
    as_text,
    leaves,
    nested,
    own_leaves,
    shared_by_most,
    shared_leaves,
    without_citations,
)
from tests.recipes.golden_files import check_table, check_text, iterate_changes
from tests.recipes.identity import identity_row, part_hashes

TABLE = GOLDEN / "recipes.csv"
# Recipes whose own values are a golden file: dense, a mixture of experts, phases.
WHOLE = (
    ("teuken7b", "full"),
    ("teuken7b", "mini"),
    ("mula7b_a1b", "full"),
    ("olmo3_7b", "full"),
)


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) >= 20
    assert "teuken7b" in RECIPES


@pytest.mark.parametrize("scale", SCALES)
def test_what_most_recipes_share_is_the_base_of_their_scale(scale: str) -> None:
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


def test_any_changed_leaf_changes_one_hash_of_the_row() -> None:
    tree, shared = composed_tree("teuken7b", "mini"), shared_leaves("mini")
    own = own_leaves(tree, shared)
    paths = [path for path, _ in leaves(tree)]
    assert {path in own for path in paths} == {True, False}
    before = part_hashes(tree, "mini")
    for path in paths:
        after = part_hashes(with_leaf(tree, path, "another value"), "mini")
        assert len(before.items() - after.items()) == 1, path
    lacking = {**tree, "recipe": {**tree["recipe"], "watchdog": {}}}
    assert before["rest_hash"] != part_hashes(lacking, "mini")["rest_hash"]


def with_leaf(tree: Mapping[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    key, *rest = path
    return {**tree, key: with_leaf(tree[key], rest, value) if rest else value}


def test_a_changed_cell_is_named_with_both_values() -> None:
    before = [{"recipe": "a", "lr": "1"}, {"recipe": "b", "lr": "2"}]
    after = [{"recipe": "a", "lr": "3"}, {"recipe": "b", "lr": "2"}]
    assert list(iterate_changes(before, after, ["recipe"])) == ["a: lr: 1 -> 3"]
    assert list(iterate_changes(before, before[:1], ["recipe"])) == [
        "b: recipe: b -> None",
        "b: lr: 2 -> None",
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_a_miniature_cites_what_its_recipe_cites(name: str) -> None:
    full, mini = (composed_tree(name, scale)["recipe"] for scale in SCALES)
    assert {key: mini[key] for key in CITED} == {key: full[key] for key in CITED}


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
def test_every_published_figure_has_a_source_and_every_assumed_value_a_reason(
    name: str,
) -> None:
    recipe = composed(name, "full")
    assert all(figure.source for figure in recipe.published.values())
    assert all(len(value.reason) > 20 for value in recipe.assumed.values())
    assert recipe.published["parameters"].value == recipe.derived_numbers.parameters.total
