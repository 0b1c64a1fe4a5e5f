"""Read a recipe file as data, before Hydra sees it; nothing is imported or resolved."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import groups
from command.data_file import Sent, read_data
from components.errors import RecipeError
from components.spec.recipe import Recipe
from components.spec.targets import NODE_KEYS, nearest, read_signature

STEM = re.compile(r"[a-z0-9][a-z0-9_]*")
INTERPOLATION = re.compile(r"\$\{([^}]*)\}?")
PLAIN_PATH = re.compile(r"[A-Za-z_][\w.]*")
REFUSED_GROUPS = frozenset({"cluster", "recipe", "scale"})
SECTIONS = frozenset(Recipe.model_fields) - {"cluster", "scale"}


def read_recipe_file(file: Path) -> Sent:
    """Read and check a recipe file as data.

    Raises:
        RecipeError: it cannot be read, is no YAML mapping, or holds what a recipe may not hold;
            with the line.
    """
    sent = read_data(file, "recipe")
    check_recipe_file(sent)
    return sent


def check_recipe_file(sent: Sent) -> None:
    """Check what was read; nothing of it is used before.

    Raises:
        RecipeError: it holds what a recipe may not hold; with the line.
    """
    tree = sent.tree
    try:
        _check_sections(tree)
        _check_defaults(tree.get("defaults", []), sent.file)
        check_content({key: value for key, value in tree.items() if key != "defaults"})
    except RecipeError as error:
        raise sent.told(error) from None


def check_content(tree: Mapping[str, Any]) -> None:
    """Check the keys, targets and references of a recipe's sections.

    Raises:
        RecipeError: with the YAML path of the first that is refused.
    """
    _check_tree(tree, "")


def _check_sections(tree: Mapping[str, Any]) -> None:
    for key in tree:
        if key != "defaults" and key not in SECTIONS:
            raise RecipeError(
                str(key),
                "a recipe has no such section"
                if key not in {"cluster", "scale"}
                else "a recipe never sets its machine or its scale; it names its home",
                nearest(str(key), sorted(SECTIONS)),
            )


def _check_defaults(entries: object, file: Path) -> None:
    """Only ``override /group: option`` and the stem of a recipe to start from are allowed."""
    known = groups()
    if not isinstance(entries, list):
        raise RecipeError(
            "defaults", f"{entries!r} is no list", "write - override /model: NAME"
        )
    for entry in entries:
        if isinstance(entry, str) and (entry == "_self_" or entry in known["recipe"]):
            continue
        if not isinstance(entry, Mapping) or len(entry) != 1:
            raise RecipeError(
                "defaults", f"{entry!r} is refused", "write override /group: option"
            )
        [(key, option)] = entry.items()
        group = str(key).removeprefix("override /")
        if group == key or group not in known or group in REFUSED_GROUPS:
            legal = sorted(set(known) - REFUSED_GROUPS)
            raise RecipeError(
                "defaults", f"{key!r} is refused in {file.name}", nearest(group, legal)
            )
        if option not in known[group]:
            problem = f"there is no {group} {option!r}"
            raise RecipeError(f"defaults.{group}", problem, nearest(str(option), known[group]))


def _check_tree(value: object, path: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            _check_key(key, item, here)
            _check_tree(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_tree(item, f"{path}[{index}]")
    elif isinstance(value, str):
        check_interpolations(value, path)


def _check_key(key: object, value: object, path: str) -> None:
    if not isinstance(key, str):
        raise RecipeError(path, f"the key {key!r} is no text", "quote it")
    if key.startswith("_") and key not in NODE_KEYS:
        raise RecipeError(
            path, "only Hydra's own instantiation reads such a key", "leave it out"
        )
    if key == "_target_":
        read_signature(value, path)


def check_interpolations(text: str, path: str) -> None:
    """Allow ``${section.key}``; refuse resolvers, which can read the environment and files.

    Raises:
        RecipeError: anything in ``${...}`` but a dotted path.
    """
    for inside in INTERPOLATION.findall(text):
        if not PLAIN_PATH.fullmatch(inside):
            raise RecipeError(
                path, f"{text!r} is refused", "only ${section.key} may be referred to"
            )
