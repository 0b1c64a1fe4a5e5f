"""Check recipe files as data: allowed sections, defaults, targets and references."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.files.trusted_paths import NAME, RECIPE, group_names, option_names
from command.files.yaml_file import ReceivedYaml
from command.recipe.replacement import without_marks
from components.config.part_nodes import NODE_KEYS, find_spec
from components.config.recipe import Recipe
from components.config.schema.types import fields_of
from components.config.suggestions import suggest_key, suggest_similar
from components.errors import RecipeError

OVERRIDE = "override /"
INTERPOLATION = re.compile(r"\$\{([^}]*)\}?")
PLAIN_PATH = re.compile(r"[A-Za-z_][\w.]*")
REFUSED_GROUPS = frozenset({"cluster", "recipe", "scale"})
SECTIONS = frozenset(fields_of(Recipe)) - {"cluster", "scale"}


def check_recipe_file(sent: ReceivedYaml) -> None:
    """Check a recipe file. Its content must not be used before. An error has the line."""
    own = {key: value for key, value in sent.tree.items() if key != "defaults"}
    try:
        _check_sections(own)
        _check_defaults(sent.tree.get("defaults", []), sent.file)
        check_content(without_marks(own))
    except RecipeError as error:
        raise sent.locate_error(error) from None


def _check_sections(tree: Mapping[str, Any]) -> None:
    for key in (section for section in tree if section not in SECTIONS):
        if key in {"cluster", "scale"}:
            problem = "a recipe cannot set cluster or scale, only reference_cluster"
            remedy = f"remove {key}, and write {key}=NAME on the command line"
            raise RecipeError(str(key), problem, remedy)
        problem = "unknown section"
        raise RecipeError(str(key), problem, suggest_key(str(key), sorted(SECTIONS)))


def _check_defaults(entries: object, file: Path) -> None:
    """Allow only group options, and recipes to start from."""
    if not isinstance(entries, list):
        problem = f"{entries!r} is not a list"
        raise RecipeError("defaults", problem, "write - override /model: NAME")
    for entry in entries:
        if isinstance(entry, str):
            _check_start(entry)
        elif isinstance(entry, Mapping) and len(entry) == 1:
            [(key, option)] = entry.items()
            _check_override(str(key), option, file)
        else:
            problem = f"{entry!r} is refused"
            raise RecipeError("defaults", problem, "write override /group: option")


def is_relative(entry: str) -> bool:
    """Return whether a defaults entry is a path relative to its file."""
    return entry.startswith(("./", "../"))


def _check_start(entry: str) -> None:
    known = option_names(RECIPE)
    if entry == "_self_" or entry in known or is_relative(entry):
        return
    if not NAME.fullmatch(entry):
        problem = f"{entry!r} is refused"
        remedy = "write a recipe name, ./FILE, or override /group: option"
        raise RecipeError("defaults", problem, remedy)
    fix = f"{suggest_similar(entry, known)}; for a file, write ./NAME"
    raise RecipeError("defaults", f"unknown recipe: {entry!r}", fix)


def _check_override(key: str, option: object, file: Path) -> None:
    legal = sorted({*group_names()} - REFUSED_GROUPS)
    group = key.removeprefix(OVERRIDE)
    if group == key or group not in legal:
        problem = f"{key!r} is refused in {file.name}"
        raise RecipeError("defaults", problem, suggest_similar(group, legal))
    options = option_names(group)
    if option not in options:
        problem = f"unknown {group}: {option!r}"
        raise RecipeError(f"defaults.{group}", problem, suggest_similar(str(option), options))


def check_content(value: object, path: str = "") -> None:
    """Check the keys, targets and references of a recipe's sections."""
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
        raise RecipeError(path, f"the key {key!r} is not a string", "quote it")
    if key.startswith("_") and key not in NODE_KEYS:
        problem = "keys of Hydra's own instantiation are not supported"
        raise RecipeError(path, problem, "remove the key")
    if key == "_target_":
        find_spec(value, path)


def check_interpolations(text: str, path: str) -> None:
    """Allow ``${section.key}``; refuse resolvers, which can read the environment and files."""
    if not all(map(PLAIN_PATH.fullmatch, INTERPOLATION.findall(text))):
        remedy = "write a reference as ${section.key}"
        raise RecipeError(path, f"{text!r} is refused", remedy)
