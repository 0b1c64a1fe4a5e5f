"""Settle a composed recipe: what its rules derive, and what only the planner can answer."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from components.config.recipe import Recipe
from components.config.resolve import resolve
from components.planner.recompute import NOTHING, Choice, least_that_fits

Tree = dict[str, Any]


def settle(tree: Tree, named_keys: Iterable[str], full: Tree, *, looks: bool = True) -> Recipe:
    """Settle and check; ``recompute: auto`` is the least that fits, and recorded as that.

    Raises:
        RecipeError: whatever is wrong, with its YAML path.
    """
    named = list(named_keys)
    if not is_open(tree):
        return resolve(tree, named, full, looks=looks)
    plain = resolve(with_choice(tree, NOTHING), named, full, looks=looks)
    return resolve(with_choice(tree, least_that_fits(plain)), named, full, looks=looks)


def is_open(tree: Tree) -> bool:
    """Whether the planner is to choose what is recomputed."""
    section = tree["parallelism"]
    return isinstance(section, dict) and section.get("recompute") == "auto"


def with_choice(tree: Tree, choice: Choice) -> Tree:
    """Copy a tree, what is recomputed being chosen."""
    chosen = deepcopy(tree)
    chosen["parallelism"] |= {"recompute": choice.recompute, "recompute_every": choice.every}
    return chosen
