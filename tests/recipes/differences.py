"""Golden files of composed recipes: what most of them share once, and each one's difference.

``golden/base-SCALE.yaml`` has the leaves that more than half of the recipes have at that scale,
so a new key with a default changes one file a scale; ``golden/NAME-SCALE.yaml`` has the leaves
that are this recipe's own, and under ``without`` the base's keys that it lacks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.recipes import published_recipes
from command.actions.show import as_json
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe

GOLDEN = Path(__file__).parent / "golden"
RECIPES = published_recipes()
SCALES = ("full", "mini")
CITED = ("why", "home", "works", "published", "assumed")  # a miniature has them unchanged

Tree = dict[str, Any]
Path_ = tuple[str, ...]


@cache
def composed(name: str, scale: str) -> Recipe:
    return compose_recipe(read_point([f"recipe={name}", f"scale={scale}"]))


@cache
def composed_tree(name: str, scale: str) -> Tree:
    """Return the composed recipe and its derived numbers; the fingerprint is kept apart."""
    tree = as_json(composed(name, scale))
    del tree["fingerprint"]
    return tree


def shared_by_most(scale: str) -> Tree:
    """Return the leaves that more than half of the recipes have at a scale."""
    found = [leaf for name in RECIPES for leaf in leaves(composed_tree(name, scale))]
    counts = Counter((path, repr(value)) for path, value in found)
    return nested({
        path: value for path, value in found if 2 * counts[path, repr(value)] > len(RECIPES)
    })


def difference(tree: Tree, base: Tree) -> Tree:
    """Return what ``tree`` has otherwise than ``base``, and the keys it lacks."""
    own, common = dict(leaves(tree)), dict(leaves(base))
    found = nested({
        path: value for path, value in own.items() if common.get(path, ...) != value
    })
    if lacking := sorted(".".join(path) for path in common if path not in own):
        found["without"] = lacking
    return found


def restored(base: Tree, own: Tree) -> Tree:
    """Undo ``difference``; the order of keys may be another."""
    own = dict(own)
    lacking = set(own.pop("without", ()))
    kept = {path: value for path, value in leaves(base) if ".".join(path) not in lacking}
    return nested({**kept, **dict(leaves(own))})


def golden_tree(name: str, scale: str) -> Tree:
    """Read a composed recipe back from its golden files."""
    tree = restored(read(f"base-{scale}"), read(f"{name}-{scale}"))
    if scale != "full":
        whole = golden_tree(name, "full")["recipe"]
        tree["recipe"].update({key: whole[key] for key in CITED})
    return tree


def without_citations(tree: Tree) -> Tree:
    recipe = {key: value for key, value in tree["recipe"].items() if key not in CITED}
    return {**tree, "recipe": recipe}


def read(stem: str) -> Tree:
    tree: Tree = yaml.safe_load((GOLDEN / f"{stem}.yaml").read_text("utf-8"))
    return tree


def as_text(tree: Tree) -> str:
    return yaml.safe_dump(
        tree, sort_keys=False, width=110, allow_unicode=True, default_flow_style=None
    )


def leaves(tree: Mapping[str, Any], above: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every path that holds no mapping, or an empty one, with its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def nested(found: Mapping[Path_, Any]) -> Tree:
    tree: Tree = {}
    for (*parents, last), value in found.items():
        inside = tree
        for step in parents:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return tree
