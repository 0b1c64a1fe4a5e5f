"""Replacement marks: mappings of a recipe that replace earlier ones instead of merging.

The shares of a mixture always replace the parent's. Any other mapping needs
``_replace_: true``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.errors import RecipeError

REPLACE = "_replace_"
WHOLE = re.compile(r"data\.(phases\.[^.]+\.)?shares")
Steps = tuple[str, ...]
YamlTree = dict[str, Any]


def without_marks(value: Any, path: str = "") -> Any:
    """Return a copy of a value without replacement marks; a mark must be true."""
    if not isinstance(value, Mapping):
        return value
    if (mark := value.get(REPLACE, True)) is not True:
        problem = f"expected true, got {mark!r}"
        where = f"{path}.{REPLACE}" if path else REPLACE
        raise RecipeError(where, problem, f"remove {REPLACE} to merge the mapping")
    return {
        key: without_marks(item, f"{path}.{key}" if path else str(key))
        for key, item in value.items()
        if key != REPLACE
    }


def merge_values(below: Any, above: Any, path: str = "") -> Any:
    """Merge a recipe's value over its parent's. Replacement marks are kept."""
    mappings = isinstance(below, Mapping) and isinstance(above, Mapping)
    if not mappings or _is_whole(above, path):
        return above
    dot = "." if path else ""
    over = {key: merge_values(below.get(key), above[key], f"{path}{dot}{key}") for key in above}
    return {**below, **over}


def replace_in(tree: YamlTree, recipe: Mapping[str, Any]) -> None:
    """Replace the merged mappings in a tree that the recipe marks as whole."""
    for (*before, last), value in _wholes(recipe, ()):
        here: Any = tree
        for step in before:
            here = here[step]
        here[last] = without_marks(value)


def _wholes(value: object, steps: Steps) -> Iterator[tuple[Steps, Any]]:
    if not isinstance(value, Mapping):
        return
    if _is_whole(value, ".".join(steps)):
        yield steps, value
        return
    for key, item in value.items():
        yield from _wholes(item, (*steps, key))


def _is_whole(value: Mapping[str, Any], path: str) -> bool:
    return REPLACE in value or WHOLE.fullmatch(path) is not None
