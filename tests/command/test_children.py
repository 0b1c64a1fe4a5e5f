"""The section ``children`` of a recipe: every child composes with its trunk, or is refused."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import read_point
from command.composition.compose import compose_recipe, compose_run
from components.config.check import check_recipe
from components.config.children import needed_tokens, saved_tokens, select_subtree
from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, split_by_group
from components.config.recipe import Recipe
from components.errors import RecipeError

BASE = ("recipe=teuken7b", "scale=full", "cluster=juwels")
EVERY = 100_000_000_000
SAVING = (f"checkpoint.every_tokens={EVERY}", "checkpoint.keep=1")
COOLS = {
    "at_tokens": 30 * EVERY,
    "with": "optimizer",
    "set": {"budget.total_tokens": 31 * EVERY},
}
TREE: Mapping[str, Any] = {
    "scored": {"every_tokens": 5 * EVERY, "evaluate": {"tasks": ["arc_easy"]}},
    "long": {
        "of": "cooled",
        "with": "weights",
        "set": {"optimizer.lr": 1e-5, "budget.total_tokens": EVERY},
    },
    "cooled": COOLS,
    "mean": {"at_tokens": 20 * EVERY, "merge": {"last": 3, "average": "1-sqrt"}},
    "given": {"of": "long", "export": {}},
}


def words(children: Mapping[str, Any]) -> tuple[str, ...]:
    text = yaml.safe_dump({"defaults": ["teuken7b"], "children": dict(children)})
    Path("tree.yaml").write_text(text, "utf-8")
    return "recipe=./tree.yaml", *BASE[1:], *SAVING


@cache
def trunk() -> Recipe:
    return compose_recipe(read_point([*BASE, *SAVING]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, dict[str, Recipe]]:
    with contextlib.chdir(tmp_path_factory.mktemp("tree")):
        composed = compose_run(read_point(words(TREE)))
        return composed.recipe, dict(composed.children)


def test_children_have_trunk_keys_and_parent_and_no_mathematics(found):
    recipe, _ = found
    assert compute_fingerprint(recipe) == compute_fingerprint(trunk())
    assert "children" not in trunk().model_dump(mode="json")
    assert needed_tokens(trunk()) == frozenset()
    leaves = split_by_group(recipe.model_dump(mode="json"))
    groups = {group for group, keys in leaves.items() for key in keys if "children" in key}
    assert groups == {KeyGroup.RECORD}
    assert check_recipe(recipe.model_dump(mode="json")) == recipe
    recipe, runs = found
    assert set(runs) == {"cooled", "long"}
    cooled, long = runs["cooled"], runs["long"]
    assert cooled.start is not None
    assert cooled.start.fingerprint == compute_fingerprint(recipe)
    assert cooled.start.at_tokens == recipe.children["cooled"].at_tokens
    assert cooled.budget.total_tokens == 31 * EVERY
    assert compute_fingerprint(cooled) == recipe.children["cooled"].fingerprint
    assert long.start is not None
    assert long.start.fingerprint == compute_fingerprint(cooled)
    assert long.optimizer["lr"] == 1e-5
    assert list(cooled.children) == ["long", "given"]
    assert cooled.children["long"].of is None
    assert list(long.children) == ["given"]
    assert list(select_subtree(recipe.children, "long")) == ["given"]
    assert select_subtree(recipe.children, "mean") == {}


def test_needed_checkpoints_stay(found: tuple[Recipe, dict[str, Recipe]]) -> None:
    recipe, _ = found
    saved = saved_tokens(recipe)
    cooled, mean = (recipe.children[name].at_tokens for name in ("cooled", "mean"))
    needed = needed_tokens(recipe)
    assert cooled in needed
    ends = [one for one in saved if mean is not None and one <= mean][-3:]
    assert {*ends} <= needed
    fifth = [one for one in saved if one // (5 * EVERY) > (one - EVERY) // (5 * EVERY)]
    assert needed == {cooled, *ends, *fifth}


def test_command_line_and_scale_change_a_tree(folder: Path) -> None:
    asked = (*words({"cooled": COOLS}), f"children.cooled.at_tokens={20 * EVERY}")
    recipe = compose_recipe(read_point(asked))
    at = recipe.children["cooled"].at_tokens
    assert at is not None
    assert 20 * EVERY <= at < 21 * EVERY
    words({"cooled": COOLS})
    composed = compose_run(read_point(["recipe=./tree.yaml"]))
    recipe, runs = composed.recipe, composed.children
    at, total = recipe.children["cooled"].at_tokens, recipe.budget.total_tokens
    assert at is not None
    assert abs(at - total / 2) <= recipe.checkpoint.every_tokens
    assert at < runs["cooled"].budget.total_tokens < total


REFUSED: dict[str, dict[str, Any]] = {
    "children.a: expected one kind, got none": {"a": {"at_tokens": 1}},
    "children.a: expected one kind, got with": {"a": {"with": "weights", "export": {}}},
    "children.a.of: unknown node z": {"a": {"of": "z", "export": {}}},
    "children.b.of: a has no checkpoints": {
        "a": {"export": {}},
        "b": {"of": "a", "evaluate": {}},
    },
    "children.a.of: a is its own ancestor through b": {
        "a": {"of": "b", "with": "weights"},
        "b": {"of": "a", "with": "weights"},
    },
    "children.a.set: only a run (with) accepts set": {"a": {"export": {}, "set": {"x": 1}}},
    "children.a.set: a child cannot set cluster.site.account": {
        "a": {"with": "weights", "set": {"cluster.site.account": "x"}}
    },
    "children.a.every_tokens: only an evaluation without at_tokens": {
        "a": {"every_tokens": EVERY, "export": {}}
    },
    "children.a.every_tokens: 150,000,000,000 is not a multiple of the parent's": {
        "a": {"every_tokens": EVERY * 3 // 2, "evaluate": {}}
    },
    "children.a.at_tokens: 90,000,000,000,000 is more than": {
        "a": {"at_tokens": 900 * EVERY, "export": {}}
    },
    "the parent saves every": {"a": {"at_tokens": EVERY * 3 // 2, "export": {}}},
    "children.a.merge.last: 3 is more than saved checkpoints, 2": {
        "a": {"at_tokens": 2 * EVERY, "merge": {"last": 3}}
    },
    "children.a: budget.seed: from.with=optimizer requires the parent's": {
        "a": {"with": "optimizer", **COOLS, "set": {"budget.seed": 7}}
    },
    "optimizer.rate: unknown key": {"a": {"with": "weights", "set": {"optimizer.rate": 7}}},
    "children.b.of: a merge has no optimizer state": {
        "a": {"merge": {"last": 2}},
        "b": {"of": "a", "with": "optimizer"},
    },
    "children.b.at_tokens: a merge has only one checkpoint": {
        "a": {"merge": {"last": 2}},
        "b": {"of": "a", "with": "weights", "at_tokens": EVERY},
    },
    "children.a.wiht: unknown key": {"a": {"wiht": "weights"}},
    "children.a.fingerprint: the child has changed": {
        "a": {"with": "weights", "fingerprint": "0" * 64}
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_impossible_tree_is_refused_with_the_node(message: str) -> None:
    arguments = read_point([*BASE, *SAVING])
    values = {**arguments.values, "children": REFUSED[message]}
    with pytest.raises(RecipeError) as refused:
        compose_recipe(replace(arguments, values=values))
    assert message in str(refused.value)


def test_tree_is_a_mapping_with_a_given_layout(folder: Path) -> None:
    with pytest.raises(RecipeError, match="children: 7 is not a mapping"):
        compose_recipe(read_point([*BASE, "children=7"]))
    with pytest.raises(RecipeError, match="does not support children"):
        compose_recipe(read_point([*words({"cooled": COOLS}), "parallelism=auto"]))
