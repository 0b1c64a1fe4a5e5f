"""Lock and bundle files, read as what somebody sent: choices and values are data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from command.arguments import Arguments, check_option, groups
from command.files.trusted_paths import is_trusted
from command.files.yaml_file import ReceivedYaml, read_data
from command.recipe.path_checks import refuse_outside
from command.recipe.recipe_file import SECTIONS, check_content
from components.config.key_groups import KeyGroup, declared
from components.config.part_nodes import check_nodes
from components.config.suggestions import nearest
from components.config.user_overrides import leaves
from components.config.validation import read_section
from components.errors import RecipeError
from components.sharing.lock import Lock, is_sealed

# Not written where a run has none, or what every run has.
OPTIONAL = {"phases", "from", "children", "trainer", "callbacks", "logger"}

MARK = "lock"  # the key by which a lock is known from a recipe
RANKS = "cluster.ranks"
CLOCK = "checkpoint."  # of the machine's group, but no machine's own
NO_MAPPINGS = frozenset({"name", "why", "home", "works"})
CARRIED = frozenset({"cluster", "scale"})  # a bundle has no section of either: conf/ does


def check_choices(choices: Mapping[str, object], path: str) -> dict[str, str]:
    """Return the options of groups that a file chooses, if ``conf/`` has them.

    Raises:
        RecipeError: there is no such group or option; anything else would reach Hydra.
    """
    known = {group: one for group, one in groups().items() if group != "recipe"}
    for group, option in choices.items():
        where = f"{path}.{group}"
        if group not in known:
            raise RecipeError(where, "there is no such group", nearest(group, list(known)))
        check_option(group, option, known[group], where)
    return {group: str(option) for group, option in choices.items()}


def check_recipe_place(recipe: str, path: str) -> str:
    """Return the name of a recipe, or its path if that stays below the working folder.

    Raises:
        RecipeError: it leads out, or is a path to no YAML file.
    """
    if recipe.endswith(".yaml"):
        refuse_outside(recipe, path)
    elif "/" in recipe:
        raise RecipeError(path, f"{recipe!r} is no recipe's name", "a path ends in .yaml")
    return recipe


def check_asked_place(lock: Lock, file: Path) -> None:
    """Check the place of the recipe that a lock was made of, unless the lock is the user's.

    Raises:
        RecipeError: it leads out, or is a path to no YAML file.
    """
    try:
        check_recipe_place(lock.asked.recipe, "asked.recipe")
    except RecipeError:
        if not is_trusted(file):
            raise


def as_received(arguments: Arguments) -> Arguments:
    """Take words that a file gave as the file's: its values, and nothing of the user's site."""
    return replace(arguments, values={}, file_values=arguments.all_values, site={})


@dataclass(frozen=True)
class ReceivedLock:
    """A lock, the file it came in, and whether it is still as it was written."""

    lock: Lock
    sent: ReceivedYaml
    sealed: bool


def read_given(file: Path, key: str = "recipe") -> ReceivedYaml | ReceivedLock:
    """Read the file that ``key`` names as a lock if it says that it is one; else as plain data.

    Raises:
        RecipeError: it is no plain YAML, or a lock that holds what it may not; with the line.
    """
    sent = read_data(file, key)
    if MARK not in sent.tree:
        return sent
    try:
        lock = _checked(sent.tree)
        check_asked_place(lock, file)
        return ReceivedLock(lock, sent, is_sealed(sent.text))
    except RecipeError as error:
        raise sent.told(error) from None


def _checked(tree: Mapping[str, Any]) -> Lock:
    """Hold everything in a lock against the rules for a recipe that somebody sent."""
    lock = read_section(Lock, tree, "")
    check_choices(lock.asked.choices, "asked.choices")
    for part in ("settled", "composed") if lock.is_bundle else ("settled",):
        try:
            _check_sections(tree[part], whole=part == "settled")
        except RecipeError as error:
            raise RecipeError(f"{part}.{error.path}", error.problem, error.remedy) from None
    for key, value in tree["asked"]["values"].items():
        check_content(reduce(lambda held, step: {step: held}, reversed(key.split(".")), value))
        if lock.is_bundle and not travels(key):
            problem = f"{key!r} is refused: a bundle never sets its machine"
            raise RecipeError(f"asked.values.{key}", problem, "name it on the command line")
    return lock


def _check_sections(tree: Mapping[str, Any], *, whole: bool) -> None:
    wanted = SECTIONS | CARRIED if whole else SECTIONS
    if strange := (tree.keys() ^ wanted) - OPTIONAL:
        odd = sorted(strange)[0]
        problem = "is no section of it" if odd in tree else "is missing"
        raise RecipeError(odd if odd in tree else "name", f"the section {odd} {problem}")
    check_content(tree)
    check_nodes(tree)
    if whole:
        _check_settled(tree)


def _check_settled(tree: Mapping[str, Any]) -> None:
    """Check what is compared of a recipe that nobody composes: its form and its keys.

    Values may be of another version: to tell them apart is what a lock is for.
    """
    for section in tree.keys() - NO_MAPPINGS:
        _mapping(tree[section], section)
    for path in ("scale.name", "cluster.name", "precision.compute"):
        section, _, key = path.partition(".")
        if not isinstance(tree[section].get(key), str):
            raise RecipeError(path, "is missing, or no text")
    check_option("scale.name", tree["scale"]["name"], groups()["scale"])
    for name, source in _mapping(tree["data"].get("sources"), "data.sources").items():
        _mapping(source, f"data.sources.{name}")
    _mapping(tree["model"].get("mlp", {}), "model.mlp")
    for path, _ in leaves(tree):
        if declared(path) is None:
            remedy = "is the lock of a newer version?"
            raise RecipeError(path, "no recipe of this version has such a key", remedy)


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(path, f"{value!r} is no mapping")
    return value


def travels(key: str) -> bool:
    """Return whether a bundle takes the key along: none of the machine, but the ranks."""
    own = key.startswith(CLOCK) or declared(key) != KeyGroup.MACHINE
    return key == RANKS or (key.partition(".")[0] in SECTIONS and own)


def with_bundle(arguments: Arguments, lock: Lock) -> Arguments:
    """Take the bundle's scale and keys where the user names none; its ranks only locally.

    Raises:
        RecipeError: the user chooses a group's file, which a bundle has no use for.
    """
    if not lock.is_bundle:
        problem = "a lock freezes a recipe of this repository, it does not carry it"
        raise RecipeError("recipe", problem, "action=pack makes a file that runs")
    for group in arguments.choices.keys() - CARRIED:
        remedy = f"name the keys that you want otherwise: {group}.KEY=..."
        raise RecipeError(group, "a bundle has its own, complete", remedy)
    values = dict(lock.model_dump(mode="json")["asked"]["values"])
    if arguments.choices.get("cluster", "local") != "local":
        values.pop(RANKS, None)
    scale = {"scale": str(lock.settled["scale"]["name"])}
    return replace(arguments, choices=scale | arguments.choices, file_values=values)
