"""The composed tree of the first recipe, as the rules meet it."""

from collections.abc import Callable
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe

Compose = Callable[..., Recipe]


@pytest.fixture
def compose() -> Compose:
    """Compose the recipe with words of the command line."""

    def call(*words: str) -> Recipe:
        return compose_recipe(read_point(["recipe=teuken7b", *words]))

    return call


@pytest.fixture(scope="session")
def full_tree() -> dict[str, Any]:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=full"])).model_dump(mode="json")
