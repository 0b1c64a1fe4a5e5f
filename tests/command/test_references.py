"""References between keys become values: whole ones keep their type, others join the text."""

from copy import deepcopy
from typing import Any

import pytest
from omegaconf import OmegaConf

from command.arguments import read_point
from command.composition.compose import compose_run
from command.composition.references import resolve_references
from components.errors import RecipeError


def test_a_whole_reference_keeps_its_type_and_is_a_copy() -> None:
    tree = resolve_references({"a": {"b": [1, 2]}, "c": "${a}", "d": "${a.b}", "e": "${a.b.1}"})
    assert tree == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [1, 2], "e": 2}
    tree["c"]["b"].append(3)
    assert tree["a"] == {"b": [1, 2]}


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        ({"name": "x", "size": 7, "here": "${name}-${size}.bin"}, "x-7.bin"),
        ({"norm": {"eps": 1}, "layer": {"norm": "${norm}"}, "here": "${layer.norm.eps}"}, 1),
        ({"a": None, "here": "${a}"}, None),
    ],
)
def test_references_are_joined_or_lead_through_others(tree: dict[str, Any], value: Any) -> None:
    assert resolve_references(tree)["here"] == value


@pytest.mark.parametrize("target", ["lost", "a.lost", "a.b.c", "unset"])
def test_a_reference_to_a_missing_key_is_refused(target: str) -> None:
    with pytest.raises(RecipeError, match=f"refers to {target}, which is not set") as refused:
        resolve_references({"a": {"b": 1}, "unset": "???", "here": {"c": f"${{{target}}}"}})
    assert refused.value.path == "here.c"
    with pytest.raises(RecipeError, match="is not a single value") as refused:
        resolve_references({"a": {"b": 1}, "c": f"x ${{a}}{target}"})
    assert refused.value.path == "c"


@pytest.mark.parametrize(
    "tree", [{"a": "${a}"}, {"a": "${b.x}", "b": "${a.x}"}, {"a": {"b": "${a}"}}]
)
def test_circular_references_are_refused(tree: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match="refers to itself"):
        resolve_references(tree)


@pytest.mark.parametrize("recipe", ["teuken7b", "mula20b_a2b", "apertus_8b"])
def test_resolves_as_omegaconf(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trees: list[dict[str, Any]] = []

    def record(tree: dict[str, Any]) -> dict[str, Any]:
        trees.append(deepcopy(tree))
        return resolve_references(tree)

    monkeypatch.setattr("command.composition.recipe_tree.resolve_references", record)
    compose_run(read_point([f"recipe={recipe}"]))
    assert "${" in str(trees[0])
    expected = OmegaConf.to_container(OmegaConf.create(trees[0]), resolve=True)
    assert resolve_references(trees[0]) == expected
