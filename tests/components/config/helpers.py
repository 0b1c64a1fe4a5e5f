"""The first recipe, and tables of what is refused: words, and below them what is said."""

import re
from string import Template
from typing import Any

import pytest
import yaml

from components.config.recipe import Recipe
from components.errors import RecipeError
from tests.recipes.compositions import compose

JOINED = re.compile(r"\\\n\s*")  # a line that ends with a backslash goes on in the next
ROW = re.compile(r"^(\S.*)\n((?: +.*(?:\n|$))+)", re.MULTILINE)


def teuken(*words: str) -> Recipe:
    return compose("teuken7b", *words)


def refusals(table: str, **long: str) -> list[tuple[str, str]]:
    """Return rows: words, in which ``$name`` is what is ``long``, and a message or pattern."""
    return [
        (Template(words).substitute(long), "\n  ".join(map(str.strip, said.splitlines())))
        for words, said in ROW.findall(JOINED.sub("", table))
    ]


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
