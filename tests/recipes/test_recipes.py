"""Every recipe: composes at every scale, has a golden file, and counts what it builds."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from command.actions.show import as_json
from command.arguments import read_point
from command.compose import compose_recipe
from components.build import build

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
RECIPES = sorted(path.stem for path in (ROOT / "recipes").rglob("*.yaml"))
SCALES = ("full", "mini")


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) == len(list((ROOT / "recipes").iterdir())) - 1  # and README.md
    assert "teuken7b" in RECIPES


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_the_composed_recipe_is_its_golden_file(name: str, scale: str) -> None:
    recipe = compose_recipe(read_point([f"recipe={name}", f"scale={scale}"]))
    text = yaml.safe_dump(as_json(recipe), sort_keys=False, width=110, allow_unicode=True)
    file = GOLDEN / f"{name}-{scale}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text, "read the difference, then `make golden`"


def test_no_golden_file_is_left_without_its_recipe() -> None:
    expected = {f"{name}-{scale}.yaml" for name in RECIPES for scale in SCALES}
    assert {file.name for file in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_arithmetic_counts_what_is_built(name: str, scale: str) -> None:
    recipe = compose_recipe(read_point([f"recipe={name}", f"scale={scale}"]))
    with torch.device("meta"):
        model = build(recipe.model, "model")
    built = sum(parameter.numel() for parameter in model.parameters())
    counts = recipe.derived.parameters
    assert built == counts.total + counts.padding


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_like_its_file_and_lives_on_a_known_cluster(name: str) -> None:
    tree: dict[str, Any] = yaml.safe_load(
        (ROOT / "recipes" / f"{name}.yaml").read_text("utf-8")
    )
    assert tree["name"] == name
    assert (ROOT / "conf" / "cluster" / f"{tree['home']}.yaml").is_file()
    home = compose_recipe(read_point([f"recipe={name}", f"cluster={tree['home']}"]))
    assert home.scale.name == "full"


@pytest.mark.parametrize("name", RECIPES)
def test_every_published_figure_has_a_source_and_every_assumed_value_a_reason(
    name: str,
) -> None:
    recipe = compose_recipe(read_point([f"recipe={name}", "scale=full"]))
    assert all(figure.source for figure in recipe.published.values())
    assert all(len(value.reason) > 20 for value in recipe.assumed.values())
    assert recipe.published["parameters"].value == recipe.derived.parameters.total
