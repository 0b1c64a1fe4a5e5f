"""Objects are built behind the gate, and only where their class is at home."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build
from components.errors import RecipeError

COSINE = {
    "_target_": "components.optim.schedules.Cosine",
    "total_tokens": 100,
    "warmup_tokens": 0,
    "warmup_from": 0.0,
    "start": 1.0,
    "end": 0.0,
}


def test_a_node_becomes_its_object() -> None:
    schedule = build(COSINE, "schedule")
    assert schedule(0) == 1.0
    assert schedule(100) == 0.0


def test_nodes_inside_are_built_too() -> None:
    node = {
        "_target_": "components.optim.schedules.Chain",
        "phases": {"a": COSINE, "b": COSINE},
    }
    chain = build(node, "schedule")
    assert chain(100) == 1.0


def test_nothing_outside_the_gate_is_built() -> None:
    with pytest.raises(RecipeError, match=r"schedule\._target_: 'os\.getcwd' is refused"):
        build({"_target_": "os.getcwd"}, "schedule")


def test_a_class_that_is_at_home_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    from components.optim import schedules

    monkeypatch.setattr(schedules, "Cosine", Path)
    with pytest.raises(RecipeError, match=r"schedule\._target_: .* is not defined in"):
        build(COSINE, "schedule")


def test_a_part_in_the_place_of_another_is_told_without_a_traceback() -> None:
    recipe = compose_recipe(read_point(["recipe=bloom560m", "scale=mini"]))
    node = recipe.model_dump(mode="json")["model"]
    attention = node["attention"] | {"_target_": "components.model.norms.Norm"}
    attention = {key: attention[key] for key in ("_target_", "_partial_")}
    with pytest.raises(RecipeError, match=r"model: cannot be built: .*\n  see conf/model/"):
        build(node | {"attention": attention}, "model")
