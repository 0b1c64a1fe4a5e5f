"""Recipe files as data: which sections, defaults, targets and references they may hold."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.arguments import groups
from command.files.trusted_paths import NAME
from command.files.yaml_file import ReceivedYaml
from command.recipe.replacement import without_marks
from components.config.part_nodes import NODE_KEYS, find_spec
from components.config.recipe import Recipe
from components.config.schema.types import fields_of
from components.config.suggestions import nearest, suggest
from components.errors import RecipeError

OVERRIDE = "override /"
INTERPOLATION = re.compile(r"\$\{([^}]*)\}?")
PLAIN_PATH = re.compile(r"[A-Za-z_][\w.]*")
REFUSED_GROUPS = frozenset({"cluster", "recipe", "scale"})
SECTIONS = frozenset(fields_of(Recipe)) - {"cluster", "scale"}


def check_recipe_file(sent: ReceivedYaml) -> None:
    """Check what was read; nothing of it is used before.

    Raises:
        RecipeError: it holds what a recipe may not hold; with the line.
    """
    own = {key: value for key, value in sent.tree.items() if key != "defaults"}
    try:
        _check_sections(own)
        _check_defaults(sent.tree.get("defaults", []), sent.file)
        check_content(without_marks(own))
    except RecipeError as error:
        raise sent.told(error) from None


def _check_sections(tree: Mapping[str, Any]) -> None:
    for key in (one for one in tree if one not in SECTIONS):
        if key in {"cluster", "scale"}:
            problem = "a recipe never sets its machine or its scale; it names its home"
            way = f"leave it out here, and write {key}=NAME on the command line"
            raise RecipeError(str(key), problem, way)
        problem = "a recipe has no such section"
        raise RecipeError(str(key), problem, suggest(str(key), sorted(SECTIONS)))


def _check_defaults(entries: object, file: Path) -> None:
    """Only options of groups and recipes to start from are allowed."""
    if not isinstance(entries, list):
        problem = f"{entries!r} is no list"
        raise RecipeError("defaults", problem, "write - override /model: NAME")
    known = groups()
    for entry in entries:
        if isinstance(entry, str):
            _check_start(entry, known["recipe"], file)
        elif isinstance(entry, Mapping) and len(entry) == 1:
            [(key, option)] = entry.items()
            _check_override(str(key), option, known, file)
        else:
            problem = f"{entry!r} is refused"
            raise RecipeError("defaults", problem, "write override /group: option")


def is_beside(entry: str) -> bool:
    """Return whether an entry of the defaults is a path from the file that has it."""
    return entry.startswith(("./", "../"))


def _check_start(entry: str, known: list[str], file: Path) -> None:
    if entry == "_self_" or entry in known or is_beside(entry):
        return
    if not NAME.fullmatch(entry):
        problem = f"{entry!r} is refused"
        remedy = "write the name of a recipe, ./FILE, or override /group: option"
        raise RecipeError("defaults", problem, remedy)
    there = (file.parent / f"{entry}.yaml").is_file()
    remedy = f"write ./{entry}" if there else f"{nearest(entry, known)}; a file's is ./NAME"
    raise RecipeError("defaults", f"there is no recipe {entry!r}", remedy)


def _check_override(
    key: str, option: object, known: Mapping[str, list[str]], file: Path
) -> None:
    legal = sorted(set(known) - REFUSED_GROUPS)
    group = key.removeprefix(OVERRIDE)
    if group == key or group not in legal:
        problem = f"{key!r} is refused in {file.name}"
        raise RecipeError("defaults", problem, nearest(group, legal))
    if option not in known[group]:
        problem = f"there is no {group} {option!r}"
        raise RecipeError(f"defaults.{group}", problem, nearest(str(option), known[group]))


def check_content(value: object, path: str = "") -> None:
    """Check the keys, targets and references of a recipe's sections.

    Raises:
        RecipeError: with the YAML path of the first that is refused.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            _check_key(key, item, here)
            check_content(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_content(item, f"{path}[{index}]")
    elif isinstance(value, str):
        check_interpolations(value, path)


def _check_key(key: object, value: object, path: str) -> None:
    if not isinstance(key, str):
        raise RecipeError(path, f"the key {key!r} is no text", "quote it")
    if key.startswith("_") and key not in NODE_KEYS:
        problem = "only Hydra's own instantiation reads such a key"
        raise RecipeError(path, problem, "leave it out")
    if key == "_target_":
        find_spec(value, path)


def check_interpolations(text: str, path: str) -> None:
    """Allow ``${section.key}``; refuse resolvers, which can read the environment and files.

    Raises:
        RecipeError: anything in ``${...}`` but a dotted path.
    """
    if not all(map(PLAIN_PATH.fullmatch, INTERPOLATION.findall(text))):
        remedy = "only ${section.key} may be referred to"
        raise RecipeError(path, f"{text!r} is refused", remedy)
