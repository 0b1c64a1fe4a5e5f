"""The first recipe, and tables of what is refused: words, and below them what is said."""

import re
from string import Template
from typing import Any

import pytest
import yaml

from components.config.recipe import Recipe
from components.errors import RecipeError
from tests.recipes.compositions import compose


def teuken(*words: str) -> Recipe:
    return compose("teuken7b", *words)


def refusals(table: str, **long: str) -> list[tuple[str, str]]:
    """Return rows ``words -> problem -> remedy``, with ``$name`` in words for what is ``long``.

    A line that is indented is a further part, and one that ends with a backslash goes on.
    """
    lines = re.sub(r"\n +", " -> ", re.sub(r"\\\n *", "", table)).strip().splitlines()
    rows = [line.split(" -> ") for line in lines]
    return [(Template(words).substitute(long), "\n  ".join(said)) for words, *said in rows]


def assert_refused(words: str, message: str, *more: str) -> None:
    """Compose the first recipe, or the one that is named, with these words."""
    name, given = "teuken7b", split_words(words)
    if given[0].startswith("recipe="):
        name = given.pop(0).removeprefix("recipe=")
    with pytest.raises(RecipeError, match=message):
        compose(name, *more, *given)


def read_values(words: str) -> dict[str, Any]:
    """Read words as keys and their values."""
    pairs = (word.partition("=") for word in split_words(words))
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def split_words(words: str) -> list[str]:
    """Split where a key begins: values may have spaces."""
    return re.split(r" (?=[\w.]+=)", words)
