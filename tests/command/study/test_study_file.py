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
BATCH = "budget.global_batch_tokens"
NO_INTERVAL = ("space.optimizer.lr", "is not an interval")
NO_TEXT = ("data.shares", "is a string.*\n  write {a: 1} or .a. without quotes")


def no_factor(name: str) -> tuple[str, str]:
    return "products", f"the factor '{name}' is not an integer key"


def tree(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(TREE), **changes}


def test_a_point_sets_its_keys_the_fixed_ones_and_the_products() -> None:
    point = {"optimizer.lr": 1e-3, "parallelism.microbatch_sequences": 2, "microbatches": 8}
    assert check_study(tree(), "rates.yaml").collect_values(point) == {
        "budget.seed": 3,
        "optimizer.lr": 1e-3,
        "parallelism.microbatch_sequences": 2,
        "budget.global_batch_tokens": 1_024,
    }


SPACE = tree()["space"]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"serach": {}}, "serach", r"unknown key\n.*search"),
    ({"space": SPACE | {"optimizer.lr": {"low": 1, "high": 1, "log": False}}}, *NO_INTERVAL),
    ({"space": SPACE | {"optimizer.lr": {"low": 0, "high": 1, "log": True}}}, *NO_INTERVAL),
    ({"products": {BATCH: ["microbatches", "microbatch"]}}, *no_factor("microbatch")),
    ({"products": {BATCH: ["microbatches", "optimizer.lr"]}}, *no_factor("optimizer.lr")),
    ({"products": {}}, "space.microbatches", "neither a key of a recipe nor a factor"),
    ({"set": {"optimizer.lr": 0.1}}, "optimizer.lr", "is set twice"),
    ({"set": {BATCH: 64}}, BATCH, "is set twice"),
    ({"products": {"optimizer.lr": [2, "microbatches"]}}, "optimizer.lr", "is set twice"),
    ({"products": PRODUCTS}, "products.tiles", "a study cannot set 'tiles'"),
    ({"set": {"cluster.site.queue": "x"}}, "cluster.site.queue", "a study cannot set this key"),
    ({"set": {"run": "x"}}, "run", "a study cannot set this key"),
    ({"set": {"site.account": "x"}}, "site.account", "a study cannot set this key"),
    ({"products": {}, "set": {"data.shares": "{en: 1.0}"}}, *NO_TEXT),
    ({"products": {}, "space": {"data.shares": ["[a]"]}}, *NO_TEXT),
]


@pytest.mark.parametrize(("changes", "path", "problem"), WRONG)
def test_wrong_study_is_refused(changes: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(tree(**changes), "rates.yaml")
    assert caught.value.path == f"rates.yaml.{path}"


def test_a_study_may_set_how_much_of_the_machine() -> None:
    check_study(tree(set={"cluster.nodes": 4}), "x.yaml")


def test_a_study_tries_one_kind_of_points() -> None:
    with pytest.raises(RecipeError, match=r"has space and points\n.*keep one of space, points"):
        check_study(tree(points=[]), "rates.yaml")
    with pytest.raises(RecipeError, match="has nothing to try"):
        check_study({"name": "rates"}, "rates.yaml")
    with pytest.raises(
        RecipeError, match=r"nothing to try; unknown key: mixture\n.*keep one of"
    ):
        check_study({"name": "rates", "mixture": {"runs": 13}}, "rates.yaml")
