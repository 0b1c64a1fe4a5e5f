"""Composed recipes that tests only read: each is composed once in a process of pytest."""

from functools import cache, reduce
from typing import Any

from benchmarks.ledger.proofs import recipe_at_home, recipe_at_scale
from benchmarks.recipes import published_recipes, recipe_tree
from command.actions.show import as_json
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.planner.plan import plan_recipe

RECIPES = published_recipes()
SCALES = ("full", "mini")


@cache
def compose(name: str, *words: str) -> Recipe:
    """Compose a recipe with words of the command line, or return its earlier composition."""
    match [word.partition("=") for word in words]:
        case [("cluster", _, cluster)] if name in RECIPES and cluster == home_of(name):
            return recipe_at_home(name)
        case [("scale", _, scale)]:
            return recipe_at_scale(name, scale)
    return compose_recipe(read_point([f"recipe={name}", *words]))


def home_of(name: str) -> str:
    return str(recipe_tree(name)["reference_cluster"])


def composed(name: str, scale: str) -> Recipe:
    return compose(name, f"scale={scale}")


def at_home(name: str, *words: str) -> Recipe:
    return compose(name, f"cluster={home_of(name)}", *words)


@cache
def shown(name: str, *words: str) -> dict[str, Any]:
    """Return what ``action=show output=json`` prints."""
    return dict(as_json(compose(name, *words)))


def composed_tree(name: str, scale: str) -> dict[str, Any]:
    """Return the composed recipe and its derived numbers, without the fingerprint."""
    tree = shown(name, f"scale={scale}")
    return {key: tree[key] for key in tree if key != "fingerprint"}


def value(name: str, path: str) -> Any:
    """Return a value of the composed recipe at home by its path, as ``derived.steps``."""
    tree = shown(name, f"cluster={home_of(name)}")
    return reduce(lambda inside, step: inside[step], path.split("."), tree)


def plan_tree(recipe: Recipe) -> dict[str, Any]:
    return plan_recipe(recipe).as_json()
