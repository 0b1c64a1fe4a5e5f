"""A study's file: what it sets at a point, and what is refused."""

from typing import Any

import pytest
import yaml

from command.study.study_file import check_study
from components.errors import RecipeError

TREE = """
name: rates
description: Which rate is best.
recipe: teuken7b
cluster: local
set: {budget.seed: 3}
space:
  optimizer.lr: {low: 1.0e-5, high: 1.0e-2, log: true}
  parallelism.microbatch_sequences: [1, 2]
  microbatches: [4, 8]
products: {budget.global_batch_tokens: [64, parallelism.microbatch_sequences, microbatches]}
objective: {measured: held_out.final, planned: null, direction: minimize}
search: {sampler: tpe, trials: 4, at_once: 1, seed: 1, poll_seconds: 1}
published: {}
"""


PRODUCTS = {
    "budget.global_batch_tokens": [64, "parallelism.microbatch_sequences", "microbatches"],
    "tiles": [8, "microbatches"],
}


def tree(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(TREE), **changes}


def refused(path: str, problem: str, **changes: Any) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(tree(**changes), "rates.yaml")
    assert caught.value.path == f"rates.yaml.{path}"


def test_a_point_sets_its_keys_the_fixed_ones_and_the_products() -> None:
    point = {"optimizer.lr": 1e-3, "parallelism.microbatch_sequences": 2, "microbatches": 8}
    assert check_study(tree(), "rates.yaml").collect_values(point) == {
        "budget.seed": 3,
        "optimizer.lr": 1e-3,
        "parallelism.microbatch_sequences": 2,
        "budget.global_batch_tokens": 1_024,
    }


def test_an_unknown_field_is_named_with_the_nearest() -> None:
    refused("serach", r"unknown key\n.*search", serach={})


@pytest.mark.parametrize(("low", "high", "log"), [(1.0, 1.0, False), (0.0, 1.0, True)])
def test_an_interval_has_an_inside(low: float, high: float, log: bool) -> None:
    space = tree()["space"] | {"optimizer.lr": {"low": low, "high": high, "log": log}}
    refused("space.optimizer.lr", "is not an interval", space=space)


@pytest.mark.parametrize("factor", ["microbatch", "optimizer.lr", "optimizer.name"])
def test_a_factor_is_a_whole_number_of_the_space(factor: str) -> None:
    space = tree()["space"] | {"optimizer.name": ["a", "b"]}
    products = {"budget.global_batch_tokens": ["microbatches", factor]}
    refused(
        "products",
        f"the factor '{factor}' is not an integer key",
        space=space,
        products=products,
    )


def test_a_name_that_is_no_key_must_be_a_factor() -> None:
    refused("space.microbatches", "neither a key of a recipe nor a factor", products={})


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"optimizer.lr": 0.1}},
        {"set": {"budget.global_batch_tokens": 64}},
        {"products": {"optimizer.lr": [2, "microbatches"]}},
    ],
)
def test_no_key_is_set_twice(changes: dict[str, Any]) -> None:
    (key,) = next(iter(changes.values()))
    refused(key, "is set twice", **changes)


def test_a_study_tries_one_kind_of_points() -> None:
    with pytest.raises(RecipeError, match=r"has space and points\n.*keep one of space, points"):
        check_study(tree(points=[]), "rates.yaml")
    with pytest.raises(RecipeError, match="has nothing to try"):
        check_study({"name": "rates"}, "rates.yaml")
    with pytest.raises(
        RecipeError, match=r"nothing to try; unknown key: mixture\n.*keep one of"
    ):
        check_study({"name": "rates", "mixture": {"runs": 13}}, "rates.yaml")


def test_a_search_counts_nothing_for_a_figure() -> None:
    refused("products.tiles", "a study cannot set 'tiles'", products=PRODUCTS)


@pytest.mark.parametrize("key", ["cluster.site.queue", "run", "hydra.run.dir", "site.account"])
def test_a_study_sets_keys_of_a_recipe_and_of_the_machine_only_how_much(key: str) -> None:
    refused(key, "a study cannot set this key", set={key: "x"})
    check_study(tree(set={"cluster.nodes": 4}), "x.yaml")


def test_a_mapping_or_a_list_is_no_text() -> None:
    remedy = "write {a: 1} or [a] without quotes"
    for given in ({"set": {"data.shares": "{en: 1.0}"}}, {"space": {"data.shares": ["[a]"]}}):
        with pytest.raises(RecipeError, match="is a string") as caught:
            check_study(tree(products={}, **given), "rates.yaml")
        assert (caught.value.path, caught.value.remedy) == ("rates.yaml.data.shares", remedy)
