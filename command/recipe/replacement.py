"""Mappings of a recipe that take the place of those below them instead of being merged in.

A mixture is whole: the shares of a recipe replace those that it starts from. Of any other
mapping ``_replace_: true`` says so.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.errors import RecipeError

REPLACE = "_replace_"
WHOLE = re.compile(r"data\.(phases\.[^.]+\.)?shares")
Steps = tuple[str, ...]
Tree = dict[str, Any]


def without_marks(value: Any, path: str = "") -> Any:
    """Return a copy of a value without the marks of replacement.

    Raises:
        RecipeError: a mark is anything but true.
    """
    if not isinstance(value, Mapping):
        return value
    if (mark := value.get(REPLACE, True)) is not True:
        problem = f"{mark!r} is not true"
        where = f"{path}.{REPLACE}" if path else REPLACE
        raise RecipeError(where, problem, f"leave {REPLACE} out, and the mapping is merged")
    return {
        key: without_marks(item, f"{path}.{key}" if path else str(key))
        for key, item in value.items()
        if key != REPLACE
    }


def merge(below: Any, above: Any, path: str = "") -> Any:
    """Merge a recipe's value over that of the one it starts from; marks are kept."""
    mappings = isinstance(below, Mapping) and isinstance(above, Mapping)
    if not mappings or _is_whole(above, path):
        return above
    dot = "." if path else ""
    over = {key: merge(below.get(key), above[key], f"{path}{dot}{key}") for key in above}
    return {**below, **over}


def replace_in(tree: Tree, recipe: Mapping[str, Any]) -> None:
    """Put the whole mappings of a merged recipe into a tree that has it merged in."""
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
