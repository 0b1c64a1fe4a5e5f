"""Hydra's part: group files into one tree. Below this room nobody has heard of OmegaConf."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from command import recipe_file
from command.arguments import COMMAND_KEYS, ROOT, Arguments, groups
from command.layout_search import Question, SearchResult, find_layout
from command.lock_file import CARRIED, ReceivedLock, read_given, with_bundle
from command.path_checks import check_places
from command.recipe_file import SECTIONS
from command.yaml_file import ReceivedYaml
from components.config.resolve import resolve
from components.config.schema.recipe import Recipe
from components.config.suggestions import nearest, suggest
from components.config.targets import read_signature
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.sharing.lock import Lock

# Below these keys a user may name what no default lists; a mapping given for one replaces it.
OPEN = (
    *("data.shares", "data.sources", "data.phases", "schedule.phases", "published", "assumed"),
    "cluster.site.environment",
)
Tree = dict[str, Any]
WHOLE = re.compile(r"\$\{[\w.]+\}")
SENT = "a_file_of_the_user"  # the name under which Hydra finds a recipe given as a path


def compose_recipe(arguments: Arguments, *, anywhere: bool = False) -> Recipe:
    """Compose, settle and check the recipe that ``arguments`` choose.

    One that is only looked at and never used may name places ``anywhere``.

    Raises:
        RecipeError: whatever the user can mend, with its path and the way out.
    """
    if arguments.searches:
        return compose_searched(arguments).recipe
    with _composed(arguments, anywhere=anywhere) as found:
        return resolve(*found)


def compose_searched(arguments: Arguments) -> SearchResult:
    """Compose the recipe with the best layout there is, and keep what was found beside it.

    Raises:
        RecipeError: as above, or no layout fits.
    """
    with _composed(arguments) as found:
        return find_layout(Question(*found), within_days=arguments.within_days)


def compose_full(arguments: Arguments) -> Tree:
    """Compose the tree of the recipe's own sections, before any rule and any key of the user's.

    Raises:
        RecipeError: as above.
    """
    with _composed(arguments, anywhere=True) as (_, _, full):
        return {key: value for key, value in full.items() if key in SECTIONS}


def compose_group(group: str, option: str) -> Tree:
    """Compose one option of a group by itself, as a recipe that chooses it has it."""
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf" / group)):
        return _plain(compose(option), resolve=True)


def compose_defaults() -> Tree:
    """Compose what holds where no recipe says otherwise; of a model what all have."""
    words = ("~recipe", "~tokenizer", "model=parts/decoder")
    return deepcopy(_compose(ROOT / "conf", words))


@contextmanager
def _composed(
    arguments: Arguments, *, anywhere: bool = False
) -> Iterator[tuple[Tree, Tree, Tree]]:
    """Give the tree with the user's keys, those keys, and the tree before they went in.

    Of a file, wrong lines are named, and what it names lies in the working folder unless
    ``anywhere``.
    """
    name, sent, lock = arguments.recipe, None, None
    named = UserOverrides(arguments.values)
    if name is not None and name.endswith(".yaml"):
        given = read_given(Path(name).expanduser())
        if isinstance(given, ReceivedLock):
            sent, lock = given.sent, given.lock
            arguments = with_bundle(arguments, lock)
        else:
            sent = given
            recipe_file.check_recipe_file(sent)
    values = arguments.all_values
    try:
        tree = _group(arguments, sent, lock)
        full = _resolve(tree)
        for key, value in values.items():
            _set(tree, key, value)
        tree = _resolve(tree) if values else deepcopy(full)
        if not anywhere and (sent is not None or arguments.file_values):
            check_places(tree, named)
        yield tree, values, full
    except (HydraException, OmegaConfBaseException) as error:
        problem = str(error).strip().splitlines()[0]
        raise RecipeError("recipe", problem, "see the file") from None
    except RecipeError as error:
        raise error if sent is None or named.covers(error.path) else sent.told(error) from None


def _group(arguments: Arguments, sent: ReceivedYaml | None, lock: Lock | None) -> Tree:
    """Group the files of ``conf/``; a bundle's own sections take the place of theirs."""
    choices = dict(arguments.choices)
    # A file of the user's may change while this process lives; those of conf/ do not.
    compose_now = _compose.__wrapped__
    if lock is not None:
        deleted = (f"~{group}" for group in groups() if group not in CARRIED)
        chosen = (f"{group}={choice}" for group, choice in sorted(choices.items()))
        own = lock.model_dump(mode="json")["composed"]
        return {**compose_now(ROOT / "conf", (*deleted, *chosen)), **own}
    if sent is not None:
        store = ConfigStore.instance()
        store.store(group="recipe", name=SENT, node=sent.tree, package="_global_")
    choices["recipe"] = SENT if sent is not None else _check_name(arguments.recipe)
    words = tuple(f"{group}={one}" for group, one in sorted(choices.items()))
    return deepcopy((_compose if sent is None else compose_now)(ROOT / "conf", words))


@cache
def _compose(conf: Path, words: tuple[str, ...]) -> Tree:
    """Let Hydra group the files, once for all points of a sweep that choose the same."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
        return _plain(compose("config", overrides=list(words)), resolve=False)


def _resolve(tree: Tree) -> Tree:
    recipe_file.check_expansion(tree)
    return _plain(OmegaConf.create(tree), resolve=True)


def _plain(config: DictConfig, *, resolve: bool) -> Tree:
    tree = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _check_name(name: str | None) -> str:
    """Return the stem of a recipe of this repository, checked as data first."""
    known = groups()["recipe"]
    if name is None:
        raise RecipeError("recipe", "no recipe is named", f"recipe=NAME; {nearest('', known)}")
    if not recipe_file.STEM.fullmatch(name) or name not in known:
        remedy = f"{nearest(name, known)} (the path of a file ends in .yaml)"
        raise RecipeError("recipe", f"there is no recipe {name!r}", remedy)
    recipe_file.read_recipe_file(ROOT / "recipes" / f"{name}.yaml")
    return name


def _set(tree: Tree, key: str, value: Any) -> None:
    """Put the user's value at a key that exists, or below one that is open."""
    _check_text(value, key)
    *parents, last = key.split(".")
    here: Any = tree
    for depth, step in enumerate(parents):
        path = ".".join(parents[: depth + 1])
        if step not in here and _is_open(path):
            here[step] = {}
        _check_known(here, path, key, tree)
        if isinstance(text := here[step], str) and WHOLE.fullmatch(text):
            # A copy of the mapping that it refers to, so that one key of it can be set.
            meant = recipe_file.find_target(tree, text[2:-1])
            here[step] = dict(meant) if isinstance(meant, dict) else text
        here = here[step]
        if not isinstance(here, dict):
            raise RecipeError(key, f"{path} is a value, it has no keys", f"write {path}=...")
    if not _is_open(key):
        _check_known(here, key, key, tree)
    here[last] = value


def _is_open(path: str) -> bool:
    return any(path == root or path.startswith(root + ".") for root in OPEN)


def _check_known(here: Tree, path: str, key: str, tree: Tree) -> None:
    """A step of ``key`` is known if the tree has it, or the class of its node takes it."""
    parent, _, step = path.rpartition(".")
    known = list(here)
    if "_target_" in here:
        known += read_signature(here["_target_"], f"{parent}._target_").arguments
    if step not in known:
        top = [*COMMAND_KEYS] if not parent else []
        way = suggest(key, sorted({*known, *top}), tree, step=step)
        raise RecipeError(path, "unknown key", way)


def _check_text(value: Any, path: str) -> None:
    """The user's own values pass the same gate as a recipe's."""
    if isinstance(value, str):
        recipe_file.check_interpolations(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            _check_text(item, path)
