"""Outcomes of a study's points: figures, or why there are none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from components.errors import RecipeError


@dataclass(frozen=True)
class PointOutcome:
    """What became of a point: its figure, or why there is none, and all that was found."""

    figure: float | None
    why: str
    found: Mapping[str, Any] = field(default_factory=dict, compare=False)


PENDING = PointOutcome(None, "")
Poll = Callable[[], PointOutcome | None]  # how a run ended; nothing as long as it has not


def refused(error: RecipeError) -> PointOutcome:
    """Return the ending of a point that cannot be."""
    return PointOutcome(None, f"{error.path}: {error.problem}")


def read_figure(tree: Mapping[str, Any], key: str, where: str) -> float:
    """Read a number of a tree by its dotted key.

    Raises:
        RecipeError: there is none.
    """
    figure = read_figure_or_none(tree, key, where)
    if figure is None:
        raise _no_number(key, where)
    return figure


def read_figure_or_none(tree: Mapping[str, Any], key: str, where: str) -> float | None:
    """Read a number, or nothing where the tree has null; keys with `` + `` between are added.

    Raises:
        RecipeError: there is no such key, or no number.
    """
    if " + " in key:
        parts = [read_figure_or_none(tree, part, where) for part in key.split(" + ")]
        return None if None in parts else sum(filter(None, parts))
    node: Any = tree
    for step in key.split("."):
        if node is None:
            return None
        if not isinstance(node, Mapping) or step not in node:
            raise _no_number(key, where)
        node = node[step]
    if node is None:
        return None
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise _no_number(key, where)
    return float(node)


def _no_number(key: str, where: str) -> RecipeError:
    return RecipeError(where, f"{key} is no number there", "name another key")
