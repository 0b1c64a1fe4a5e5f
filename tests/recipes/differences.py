"""The values that most recipes share at a scale, and the other leaves of a recipe."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from tests.recipes.compositions import RECIPES, composed_tree

GOLDEN = Path(__file__).parent / "golden"
CITED = (
    "description",
    "reference_cluster",
    "citations",
    "published",
    "assumed",
)  # a miniature has them unchanged
ABSENT = {"absent": True}  # no leaf is a mapping with values
WIDTH = 110

Tree = dict[str, Any]
LeafPath = tuple[str, ...]


def shared_by_most(scale: str) -> Tree:
    """Return the leaves that more than half of the recipes have at a scale."""
    pairs = [leaf for name in RECIPES for leaf in leaves(composed_tree(name, scale))]
    counts = Counter((path, repr(value)) for path, value in pairs)
    return nested({
        path: value for path, value in pairs if 2 * counts[path, repr(value)] > len(RECIPES)
    })


@cache
def shared_leaves(scale: str) -> Mapping[LeafPath, Any]:
    """Read the shared leaves of a scale from their golden file."""
    text = (GOLDEN / f"base-{scale}.yaml").read_text("utf-8")
    return dict(leaves(yaml.safe_load(text)))


def own_leaves(tree: Tree, shared: Mapping[LeafPath, Any]) -> dict[LeafPath, Any]:
    """Return the leaves that differ from the shared ones, and the shared ones that it lacks.

    Together with the shared leaves they determine the tree.
    """
    every = dict(leaves(tree))
    own = {
        path: value for path, value in every.items() if repr(shared.get(path)) != repr(value)
    }
    return own | {path: ABSENT for path in shared if path not in every}


def without_citations(tree: Tree) -> Tree:
    recipe = {key: value for key, value in tree["recipe"].items() if key not in CITED}
    return {**tree, "recipe": recipe}


class _Dumper(yaml.SafeDumper):
    """Write a value as often as it occurs."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True


def as_text(tree: Mapping[str, Any], indent: int = 0) -> str:
    """Write a tree as YAML: what fits is on one line, and so are values side by side."""
    text = ""
    for key, value in tree.items():
        inside = isinstance(value, Mapping) and any(isinstance(v, dict) for v in value.values())
        line = f"{_flow(key)}: {_flow(value)}"
        if inside and len(line) > WIDTH - indent:
            text += f"{' ' * indent}{_flow(key)}:\n{as_text(value, indent + 2)}"
        else:
            wrapped = _flow(value, WIDTH - indent - len(key)).replace("\n", f"\n{' ' * indent}")
            text += f"{' ' * indent}{_flow(key)}: {wrapped}\n"
    return text


def _flow(value: object, width: float = inf) -> str:
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        sort_keys=False,
        allow_unicode=True,
        width=width,
    )
    return text.removesuffix("...\n").strip()


def leaves(tree: Mapping[str, Any], above: LeafPath = ()) -> Iterator[tuple[LeafPath, Any]]:
    """Yield every path that holds no mapping, or an empty one, with its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def nested(found: Mapping[LeafPath, Any]) -> Tree:
    """Return the tree that has these leaves; one that gave way to others is not absent."""
    tree: Tree = {}
    for (*parents, last), value in found.items():
        inside: Any = tree
        for step in parents:
            inside = inside.setdefault(step, {}) if isinstance(inside, dict) else None
        if isinstance(inside, dict) and not (value == ABSENT and last in inside):
            inside[last] = value
    return tree
