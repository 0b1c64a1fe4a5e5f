"""Hydra's part: group files into one tree. Below this room nobody has heard of OmegaConf."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from command.arguments import COMMAND_KEYS, Arguments, groups
from command.composition.children import RootRun, compose_children, pop_children
from command.composition.layout_search import SearchProblem, SearchResult, find_layout
from command.composition.parent_run import Composers, checked, resolve_parent
from command.composition.settling import settle
from command.files.trusted_paths import conf_folder
from command.recipe import recipe_file
from command.recipe.lock_file import CARRIED, with_bundle
from command.recipe.option_file import StoredConfig, read_options
from command.recipe.path_checks import places_outside
from command.recipe.recipe_chain import RecipeChain
from command.recipe.recipe_file import SECTIONS
from command.recipe.recipe_source import read_source
from command.recipe.replacement import replace_in
from components.config.part_nodes import find_spec
from components.config.recipe import Recipe
from components.config.suggestions import suggest
from components.config.user_overrides import UserOverrides, is_open
from components.errors import RecipeError
from components.sharing.lock import Lock

Tree = dict[str, Any]
LOCAL = "local"  # the cluster where nothing chooses another
NO_KEYS: Mapping[str, Any] = {}
WHOLE = re.compile(r"\$\{[\w.]+\}")
CHOSEN, ALONE = "chosen", "alone"  # names under which Hydra finds what it is given
UNCHOSEN = re.compile(r"You must specify '(\w+)'")


def compose_recipe(
    arguments: Arguments, *, anywhere: bool = False, line: tuple[str, ...] = ()
) -> Recipe:
    """Compose, settle and check the recipe that ``arguments`` choose.

    One that is only looked at and never used may name places ``anywhere``. ``line`` are
    the recipes that were composed as parents up to this one.

    Raises:
        RecipeError: whatever the user can mend, with its path and the way out.
    """
    return compose_tree(arguments, anywhere=anywhere, line=line)[0]


def compose_tree(
    arguments: Arguments, *, anywhere: bool = False, line: tuple[str, ...] = ()
) -> tuple[Recipe, dict[str, Recipe]]:
    """Compose a recipe as above, and those of the runs that are its children, by their names.

    Raises:
        RecipeError: as above; of a child with its name.
    """
    if arguments.searches:
        return compose_searched(arguments).recipe, {}
    with _composed(arguments, anywhere=anywhere) as found:
        tree, values, full = found
        children = pop_children(tree)
        strange = anywhere and places_outside(tree, UserOverrides(arguments.values))
        parent = resolve_parent(
            tree, values, Composers(compose_recipe, compose_full), line, looks=not strange
        )
        recipe = checked(settle(tree, values, full, looks=not strange), parent)
        if not children:
            return recipe, {}

        def regroup(own: Arguments, keys: Mapping[str, Any]) -> tuple[Tree, Tree, Tree]:
            with _composed(own, anywhere=anywhere, keys=keys) as found:
                pop_children(found[0])
                return found

        tokens = full["budget"]["total_tokens"]
        return compose_children(RootRun(recipe, arguments, tokens, regroup), children)


def compose_searched(arguments: Arguments) -> SearchResult:
    """Compose the recipe with the best layout there is, and keep what was found beside it.

    Raises:
        RecipeError: as above, or no layout fits.
    """
    with _composed(arguments) as (tree, values, full):
        if pop_children(tree):
            problem = "the layout is searched for, and each child has one of its own"
            raise RecipeError("children", problem, "name the degrees that action=plan finds")
        parent = resolve_parent(
            tree, values, Composers(compose_recipe, compose_full), (), looks=True
        )
        question = SearchProblem(tree, values, full)
        found = find_layout(question, within_days=arguments.within_days)
        checked(found.recipe, parent)
        return found


def compose_full(arguments: Arguments) -> Tree:
    """Compose the tree of the recipe's own sections, before any rule and any key of the user's.

    Raises:
        RecipeError: as above.
    """
    with _composed(arguments, anywhere=True) as (_, _, full):
        return {key: value for key, value in full.items() if key in SECTIONS}


def compose_group(group: str, option: str) -> Tree:
    """Compose one option of a group by itself, as a recipe that chooses it has it.

    Raises:
        RecipeError: it is a private file, and wrong.
    """
    # A profile may choose a scale.
    entries = [{one: name} for one, name in {"scale": "full", group: option}.items()]
    alone = StoredConfig(None, ALONE, json.dumps({"defaults": entries}), "_global_")
    with _hydra(conf_folder(), [*read_options({group: option}), alone]):
        section: Tree = _plain(compose(ALONE), resolve=True)[group]
    return section


def compose_defaults() -> Tree:
    """Compose what holds where no recipe says otherwise; of a model what all have."""
    words = ("~recipe", "~tokenizer", "model=parts/decoder")
    return deepcopy(_compose(conf_folder(), words, ()))


@contextmanager
def _composed(
    arguments: Arguments, *, anywhere: bool = False, keys: Mapping[str, Any] = NO_KEYS
) -> Iterator[tuple[Tree, Tree, Tree]]:
    """Give the tree with the user's keys, those keys, and the tree before they went in.

    Other ``keys`` are set as if the recipe had them.

    Of a file, wrong lines are named, and what a received one names lies in the working folder
    unless ``anywhere``.
    """
    named, beside = UserOverrides(arguments.values), UserOverrides(arguments.file_values)
    source = read_source(arguments.recipe)
    if isinstance(source.came, Lock):
        arguments = with_bundle(arguments, source.came)
    values = arguments.all_values
    try:
        tree = _group(arguments, source.came)
        if _is_planned_at_home(tree, arguments):
            choices = {**arguments.choices, "cluster": tree["home"]}
            tree = _group(replace(arguments, choices=choices), source.came)
        tree = _at_home(tree, arguments)
        for key, value in keys.items():
            _set(tree, key, value)
        full = _resolve(tree)
        for key, value in values.items():
            _set(tree, key, value)
        tree = _resolve(tree) if values else deepcopy(full)
        if not anywhere:
            source.check_places(tree, named, beside)
        yield tree, values, full
    except (HydraException, OmegaConfBaseException) as error:
        raise source.told(_plainly(error)) from None
    except RecipeError as error:
        raise error if named.covers(error.path) else source.told(error) from None


def _plainly(error: Exception) -> RecipeError:
    """Say what Hydra says; of a group of which nothing is chosen, how a recipe does it."""
    problem = str(error).strip().splitlines()[0]
    if (unchosen := UNCHOSEN.search(problem)) is None:
        return RecipeError("recipe", problem, "see the file")
    group = unchosen[1]
    way = f"begin with defaults: [NAME] of a recipe, or [override /{group}: NAME]"
    return RecipeError("defaults", f"no {group} is chosen", way)


def _group(arguments: Arguments, came: RecipeChain | Lock) -> Tree:
    """Group the files of ``conf/``; a bundle's own sections take the place of theirs."""
    choices = dict(arguments.choices)
    if isinstance(came, Lock):
        words = [f"~{group}" for group in groups() if group not in CARRIED]
        words += [f"{group}={choice}" for group, choice in sorted(choices.items())]
        carried: Tree = came.model_dump(mode="json")["composed"]
        tree = _compose(conf_folder(), tuple(words), tuple(read_options(choices)))
        return deepcopy(tree) | carried
    stored = read_options({**came.options, **choices})
    parts = [f"part_{place}" for place, _ in enumerate(came.files)]
    overrides = [{f"override /{group}": one} for group, one in came.options.items()]
    contents = dict(zip(parts, came.sections, strict=True))
    contents[CHOSEN] = {"defaults": [*parts, *overrides]}
    stored += [
        StoredConfig("recipe", name, json.dumps(content), "_global_")
        for name, content in contents.items()
    ]
    choices["recipe"] = CHOSEN
    words = [f"{group}={one}" for group, one in sorted(choices.items())]
    tree = deepcopy(_compose(conf_folder(), tuple(words), tuple(stored)))
    replace_in(tree, came.merged)
    return tree


def _is_planned_at_home(tree: Tree, arguments: Arguments) -> bool:
    """Whether a plan takes the home cluster, because nothing chooses a cluster."""
    if arguments.action != "plan" or "cluster" in arguments.choices:
        return False
    home = tree.get("home")
    return tree["cluster"]["name"] == LOCAL and isinstance(home, str) and home != LOCAL


def _at_home(tree: Tree, arguments: Arguments) -> Tree:
    """Train a recipe at full size where it is at home, unless a scale is chosen."""
    chosen = "scale" in arguments.choices or tree["scale"]["shrink"] == "none"
    if not chosen and tree.get("home") == tree["cluster"]["name"]:
        tree["scale"] = compose_group("scale", "full")
    return tree


@cache
def _compose(conf: Path, words: tuple[str, ...], stored: tuple[StoredConfig, ...]) -> Tree:
    """Let Hydra group the files, once for all points of a sweep that choose the same."""
    with _hydra(conf, stored):
        return _plain(compose("config", overrides=list(words)), resolve=False)


@contextmanager
def _hydra(conf: Path, stored: Sequence[StoredConfig]) -> Iterator[None]:
    """Let Hydra read the files of ``conf``, and beside them what was read as data."""
    store = ConfigStore.instance()
    # A bundle leaves the recipe out (~recipe); only a group that has files can be.
    store.store(group="recipe", name="none", node={}, package="_global_")
    for one in stored:
        store.store(group=one.group, name=one.name, node=one.tree, package=one.package)
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            yield
    finally:  # the store is the process's: a file of this name may lie elsewhere next time
        for one in stored:
            (store.repo[one.group] if one.group else store.repo).pop(f"{one.name}.yaml", None)


def _resolve(tree: Tree) -> Tree:
    recipe_file.check_expansion(tree)
    return _plain(OmegaConf.create(tree), resolve=True)


def _plain(config: DictConfig, *, resolve: bool) -> Tree:
    tree = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _set(tree: Tree, key: str, value: Any) -> None:
    """Put the user's value at a key that exists, or below one that is open."""
    _check_text(value, key)
    *parents, last = key.split(".")
    here: Any = tree
    for depth, step in enumerate(parents):
        path = ".".join(parents[: depth + 1])
        if step not in here and is_open(path):
            here[step] = {}
        _check_known(here, path, key, tree)
        if isinstance(text := here[step], str) and WHOLE.fullmatch(text):
            # A copy of the mapping that it refers to, so that one key of it can be set.
            meant = recipe_file.find_target(tree, text[2:-1])
            here[step] = dict(meant) if isinstance(meant, dict) else text
        here = here[step]
        if not isinstance(here, dict):
            raise RecipeError(key, f"{path} is a value, it has no keys", f"write {path}=...")
    if not is_open(key):
        _check_known(here, key, key, tree)
    here[last] = value


def _check_known(here: Tree, path: str, key: str, tree: Tree) -> None:
    """A step of ``key`` is known if the tree has it, or the class of its node takes it."""
    parent, _, step = path.rpartition(".")
    known = list(here)
    if "_target_" in here:
        known += find_spec(here["_target_"], f"{parent}._target_").list_keys()
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
