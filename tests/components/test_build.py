"""Objects are built behind the gate, and only where their class is at home."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.errors import RecipeError

COSINE = {
    "_target_": "components.optim.schedules.Cosine", "total_tokens": 100, "warmup_tokens": 0,
    "warmup_from": 0.0, "start": 1.0, "end": 0.0,
}  # fmt: skip
CHAIN = {
    "_target_": "components.optim.schedules.Chain",
    "phases": {"a": COSINE, "b": COSINE},
}


def test_a_node_builds_its_object_and_nested_nodes() -> None:
    schedule = build_node(COSINE, "schedule")
    assert (schedule(0), schedule(100)) == (1.0, 0.0)
    assert build_node(CHAIN, "schedule")(100) == 1.0


def test_a_target_outside_the_allowed_list_is_refused() -> None:
    message = r"schedule\._target_: 'os\.getcwd' is not an allowed"
    with pytest.raises(RecipeError, match=message):
        build_node({"_target_": "os.getcwd"}, "schedule")


def test_a_part_in_the_wrong_place_is_refused() -> None:
    recipe = compose_recipe(read_point(["recipe=bloom560m", "scale=mini"]))
    node = recipe.model_dump(mode="json")["model"]
    message = r"model\.attention\._target_: .*Norm is not valid here\n  use one of .*\.Atten"
    with pytest.raises(RecipeError, match=message):
        build_node(node | {"attention": node["norm"]}, "model")
