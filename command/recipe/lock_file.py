"""Read received lock and bundle files. Their choices and values are untrusted data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from command.arguments import Arguments, check_option, list_config_groups
from command.files.trusted_paths import is_trusted
from command.files.yaml_file import ReceivedYaml, read_sections
from command.recipe.path_checks import refuse_outside
from command.recipe.recipe_file import SECTIONS, check_content
from components.config.key_groups import KeyGroup, find_declared_group
from components.config.part_nodes import check_nodes
from components.config.suggestions import suggest_similar
from components.config.user_overrides import iterate_leaves
from components.config.validation import read_section
from components.errors import RecipeError
from components.sharing.lock import Lock, is_sealed

# Sections that a run may lack, or that all runs share.
OPTIONAL = {"phases", "from", "children", "trainer", "callbacks", "logger"}

MARK = "lock"  # the key that marks a lock
EARLIER_KEYS = {"asked": "requested", "settled": "resolved"}  # of locks before 0.10
RANKS = "cluster.ranks"
CLOCK = "checkpoint."  # in the machine's group, but not specific to a machine
NO_MAPPINGS = frozenset({"name", "description", "reference_cluster", "citations"})
CARRIED = frozenset({"cluster", "scale"})  # not in a bundle: conf/ has these sections


def check_choices(choices: Mapping[str, object]) -> dict[str, str]:
    """Return a lock's choices of group options; refuse others: the text would reach Hydra."""
    known = {
        group: options for group, options in list_config_groups().items() if group != "recipe"
    }
    for group, option in choices.items():
        where = f"requested.choices.{group}"
        if group not in known:
            raise RecipeError(where, "unknown group", suggest_similar(group, list(known)))
        check_option(group, option, known[group], where)
    return {group: str(option) for group, option in choices.items()}


def check_recipe_place(recipe: str, path: str) -> str:
    """Return a recipe's name, or its path if that is a YAML file below the working folder."""
    if recipe.endswith(".yaml"):
        refuse_outside(recipe, path)
    elif "/" in recipe:
        raise RecipeError(path, f"{recipe!r} is not a name", "a path must end in .yaml")
    return recipe


@dataclass(frozen=True)
class ReceivedLock:
    """A lock, the file that contains it, and whether its text is unedited."""

    lock: Lock
    sent: ReceivedYaml
    sealed: bool


def read_given(file: Path, key: str = "recipe") -> ReceivedYaml | ReceivedLock:
    """Read the file that ``key`` names as a lock if it is marked as one, else as plain data."""
    sent = read_sections(file, key)
    if MARK not in sent.tree:
        return sent
    try:
        lock = _checked(sent.tree)
        if not is_trusted(file):
            check_recipe_place(lock.requested.recipe, "requested.recipe")
        return ReceivedLock(lock, sent, is_sealed(sent.text))
    except RecipeError as error:
        raise sent.locate_error(error) from None


def _checked(tree: Mapping[str, Any]) -> Lock:
    """Validate everything in a lock by the rules for received recipes."""
    tree = {EARLIER_KEYS.get(key, key): value for key, value in tree.items()}
    lock = read_section(Lock, tree, "")
    check_choices(lock.requested.choices)
    for part in ("resolved", "composed") if lock.is_bundle else ("resolved",):
        try:
            _check_sections(tree[part], whole=part == "resolved")
        except RecipeError as error:
            raise RecipeError(f"{part}.{error.path}", error.problem, error.remedy) from None
    for key, value in tree["requested"]["values"].items():
        check_content(
            reduce(lambda nested, step: {step: nested}, reversed(key.split(".")), value)
        )
        if lock.is_bundle and not is_portable_key(key):
            problem = f"{key!r} is not allowed: a bundle cannot set its machine"
            raise RecipeError(f"requested.values.{key}", problem, "set it on the command line")
    return lock


def _check_sections(tree: Mapping[str, Any], *, whole: bool) -> None:
    wanted = SECTIONS | CARRIED if whole else SECTIONS
    if unexpected := (tree.keys() ^ wanted) - OPTIONAL:
        odd = sorted(unexpected)[0]
        problem = "is not a section of a lock" if odd in tree else "is missing"
        raise RecipeError(odd if odd in tree else "name", f"the section {odd} {problem}")
    check_content(tree)
    check_nodes(tree)
    if whole:
        _check_resolved(tree)


def _check_resolved(tree: Mapping[str, Any]) -> None:
    """Check the form and keys of a lock's resolved recipe, which is never composed.

    Values may come from another version: the purpose of a lock is to show such differences.
    """
    for section in tree.keys() - NO_MAPPINGS:
        _mapping(tree[section], section)
    for path in ("scale.name", "cluster.name", "precision.compute"):
        section, _, key = path.partition(".")
        if not isinstance(tree[section].get(key), str):
            raise RecipeError(path, "is missing or not a string")
    check_option("scale.name", tree["scale"]["name"], list_config_groups()["scale"])
    for name, source in _mapping(tree["data"].get("sources"), "data.sources").items():
        _mapping(source, f"data.sources.{name}")
    _mapping(tree["model"].get("mlp", {}), "model.mlp")
    for path, _ in iterate_leaves(tree):
        if find_declared_group(path) is None:
            remedy = "use the version that wrote the lock"
            raise RecipeError(path, "this version has no such key", remedy)


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(path, f"{value!r} is not a mapping")
    return value


def is_portable_key(key: str) -> bool:
    """Return whether a bundle includes the key: ranks, but no other key of the machine."""
    own = key.startswith(CLOCK) or find_declared_group(key) != KeyGroup.MACHINE
    return key == RANKS or (key.partition(".")[0] in SECTIONS and own)


def with_bundle(arguments: Arguments, lock: Lock) -> Arguments:
    """Add the bundle's scale and keys where the user sets none; its ranks apply only locally.

    Options of a group that the bundle contains completely are refused.
    """
    if not lock.is_bundle:
        problem = "a lock does not contain the recipe that it locks"
        raise RecipeError("recipe", problem, "write a bundle with action=pack")
    for group in arguments.choices.keys() - CARRIED:
        remedy = f"set single keys instead: {group}.KEY=..."
        raise RecipeError(group, "the bundle already sets this group", remedy)
    values = dict(lock.model_dump(mode="json")["requested"]["values"])
    if arguments.choices.get("cluster", "local") != "local":
        values.pop(RANKS, None)
    scale = {"scale": str(lock.resolved["scale"]["name"])}
    return replace(arguments, choices=scale | arguments.choices, file_values=values)
