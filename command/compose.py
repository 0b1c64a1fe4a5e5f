"""Hydra's part: group files into one tree. Below this room nobody has heard of OmegaConf."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from command.arguments import COMMAND_KEYS, ROOT, Arguments, groups
from command.layout_search import Question, SearchResult, find_layout
from command.lock_file import CARRIED, ReceivedLock, read_given, with_bundle
from command.path_checks import check_places
from command.recipe_file import (
    SECTIONS,
    STEM,
    check_expansion,
    check_interpolations,
    check_recipe_file,
    read_recipe_file,
)
from command.yaml_file import ReceivedYaml
from components.config.resolve import resolve
from components.config.schema.recipe import Recipe
from components.config.targets import nearest, read_signature
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError

# Below these keys a user may name what no default lists; a mapping given for one replaces it.
OPEN = (
    *("data.shares", "data.sources", "data.phases", "schedule.phases", "published", "assumed"),
    "cluster.site.environment",
)
WHOLE = re.compile(r"\$\{[\w.]+\}")
SENT = "a_file_of_the_user"  # the name under which Hydra finds a recipe given as a path


def compose_recipe(arguments: Arguments) -> Recipe:
    """Compose, settle and check the recipe that ``arguments`` choose.

    Raises:
        RecipeError: whatever the user can mend, with its path and the way out.
    """
    if arguments.searches:
        return compose_searched(arguments).recipe
    with _lines_told(arguments) as given:
        trees = _compose_trees(given)
        _check_places(trees, given)
        return resolve(trees.settled, given.arguments.all_values, trees.full)


def compose_to_compare(arguments: Arguments) -> Recipe:
    """Compose a recipe that is looked at and never used, wherever its places may be.

    Raises:
        RecipeError: as above.
    """
    with _lines_told(arguments) as given:
        trees = _compose_trees(given)
        return resolve(trees.settled, given.arguments.all_values, trees.full)


def compose_searched(arguments: Arguments) -> SearchResult:
    """Compose the recipe with the best layout there is, and keep what was found beside it.

    Raises:
        RecipeError: as above, or no layout fits.
    """
    with _lines_told(arguments) as given:
        trees = _compose_trees(given)
        _check_places(trees, given)
        question = Question(trees.settled, given.arguments.all_values, trees.full)
        return find_layout(question, within_days=arguments.within_days)


def compose_full(arguments: Arguments) -> dict[str, Any]:
    """Compose the tree of the recipe's own sections, before any rule and any key of the user's.

    Raises:
        RecipeError: as above.
    """
    with _lines_told(arguments) as given:
        full = _compose_trees(given).full
        return {key: value for key, value in full.items() if key in SECTIONS}


def compose_group(group: str, option: str) -> dict[str, Any]:
    """Compose one option of a group by itself, as a recipe that chooses it has it."""
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf" / group)):
        tree = OmegaConf.to_container(compose(option), resolve=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


@dataclass(frozen=True)
class _Given:
    """What is composed: the file if there is one, and the words beside it.

    ``arguments`` have a bundle's keys too, as those of a file.
    """

    arguments: Arguments
    file: ReceivedYaml | ReceivedLock | None


@dataclass(frozen=True)
class _Trees:
    """The tree with the user's keys, and as it was before they went in."""

    settled: dict[str, Any]
    full: dict[str, Any]


@contextmanager
def _lines_told(arguments: Arguments) -> Iterator[_Given]:
    """Read a recipe that is a file, and name the lines of what is wrong in it."""
    name = arguments.recipe
    if name is None or not name.endswith(".yaml"):
        yield _Given(arguments, None)
        return
    file, named = read_given(Path(name).expanduser()), UserOverrides(arguments.values)
    if isinstance(file, ReceivedLock):
        sent, arguments = file.sent, with_bundle(arguments, file.lock)
    else:
        check_recipe_file(file)
        sent = file
    try:
        yield _Given(arguments, file)
    except RecipeError as error:
        raise error if named.covers(error.path) else sent.told(error) from None


def _compose_trees(given: _Given) -> _Trees:
    arguments = given.arguments
    try:
        values = _composed(given)
        full = _resolve(values)
        for key, value in arguments.all_values.items():
            _set(values, key, value)
        settled = _resolve(values)
    except (HydraException, OmegaConfBaseException) as error:
        raise RecipeError(
            "recipe", str(error).strip().splitlines()[0], "see the file"
        ) from None
    return _Trees(settled, full)


def _check_places(trees: _Trees, given: _Given) -> None:
    """Hold what a file says to the working folder; what the user names may lie anywhere."""
    if given.file is not None or given.arguments.file_values:
        check_places(trees.settled, UserOverrides(given.arguments.values))


def _composed(given: _Given) -> dict[str, Any]:
    """Group the files of ``conf/``; a bundle's own sections take the place of theirs."""
    choices = dict(given.arguments.choices)
    if isinstance(given.file, ReceivedLock):
        lock = given.file.lock.model_dump(mode="json")
        deleted = (f"~{group}" for group in groups() if group not in CARRIED)
        chosen = (f"{group}={choice}" for group, choice in sorted(choices.items()))
        return {**_compose.__wrapped__(ROOT / "conf", (*deleted, *chosen)), **lock["composed"]}
    if given.file is not None:
        store = ConfigStore.instance()
        store.store(group="recipe", name=SENT, node=given.file.tree, package="_global_")
    option = SENT if given.file is not None else _check_name(given.arguments.recipe)
    words = tuple(
        f"{group}={one}" for group, one in sorted({**choices, "recipe": option}.items())
    )
    # A file of the user's may change while this process lives; those of conf/ do not.
    composed = _compose if given.file is None else _compose.__wrapped__
    return deepcopy(composed(ROOT / "conf", words))


@cache
def _compose(conf: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """Let Hydra group the files, once for all points of a sweep that choose the same."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        tree = compose("config", overrides=list(words))
    composed = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(composed, dict)
    return {str(key): value for key, value in composed.items()}


def _resolve(tree: dict[str, Any]) -> dict[str, Any]:
    check_expansion(tree)
    resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _check_name(name: str | None) -> str:
    """Return the stem of a recipe of this repository, checked as data first."""
    known = groups()["recipe"]
    if name is None:
        raise RecipeError("recipe", "no recipe is named", f"recipe=NAME; {nearest('', known)}")
    if not STEM.fullmatch(name) or name not in known:
        remedy = nearest(name, known) + "; a file's path ends in .yaml"
        raise RecipeError("recipe", f"there is no recipe {name!r}", remedy)
    read_recipe_file(ROOT / "recipes" / f"{name}.yaml")
    return name


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    """Put the user's value at a key that exists, or below one that is open."""
    _check_text(value, key)
    *parents, last = key.split(".")
    here: Any = tree
    for depth, step in enumerate(parents):
        path = ".".join(parents[: depth + 1])
        if step not in here and _is_open(path):
            here[step] = {}
        _check_known(here, step, path)
        here[step] = _follow(tree, here[step])
        here = here[step]
        if not isinstance(here, dict):
            raise RecipeError(key, f"{path} is a value, it has no keys", f"write {path}=...")
    if not _is_open(key):
        _check_known(here, last, key)
    here[last] = value


def _follow(tree: dict[str, Any], value: Any) -> Any:
    """Copy the mapping that an interpolation refers to, so that one key of it can be set."""
    if not isinstance(value, str) or not WHOLE.fullmatch(value):
        return value
    found: Any = tree
    for step in value[2:-1].split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return dict(found) if isinstance(found, dict) else value


def _is_open(path: str) -> bool:
    return any(path == root or path.startswith(root + ".") for root in OPEN)


def _check_known(here: dict[str, Any], step: str, path: str) -> None:
    """A key is known if the tree has it, or if the class of its node takes it."""
    known = list(here)
    if "_target_" in here:
        parent = path.rpartition(".")[0]
        known += read_signature(here["_target_"], f"{parent}._target_").arguments
    if step not in known:
        top = [*COMMAND_KEYS] if "." not in path else []
        raise RecipeError(path, "unknown key", nearest(step, sorted({*known, *top})))


def _check_text(value: Any, path: str) -> None:
    """The user's own values pass the same gate as a recipe's."""
    if isinstance(value, str):
        check_interpolations(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            _check_text(item, path)
