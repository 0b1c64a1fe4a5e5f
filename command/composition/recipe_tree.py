"""The tree of one recipe: the values of its files, overridden by the user's keys."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from command.arguments import COMMAND_KEYS, Arguments
from command.composition.conf_groups import compose_groups
from command.composition.references import REFERENCE, find_target, resolve_references
from command.recipe.lock_file import with_bundle
from command.recipe.recipe_chain import RecipeChain
from command.recipe.recipe_file import SECTIONS, check_content
from command.recipe.recipe_source import read_source
from components.config.check import change_recipe
from components.config.part_nodes import find_spec
from components.config.recipe import Recipe
from components.config.resolve import leaves_recompute_open, resolve_tree
from components.config.suggestions import suggest_key
from components.config.user_overrides import REMOVABLE, UserOverrides, is_open
from components.errors import RecipeError
from components.sharing.lock import Lock

YamlTree = dict[str, Any]
NO_KEYS: Mapping[str, Any] = {}
LOCAL = "local"  # the default cluster


@dataclass(frozen=True)
class RecipeTree:
    """A composed recipe before its rules are checked.

    ``values`` are the keys that the user or a file set. ``full`` is the tree without them.
    ``bundle`` is the recipe's bundle, if any.
    """

    tree: YamlTree
    values: YamlTree
    full: YamlTree
    bundle: Lock | None

    @property
    def full_tokens(self) -> int:
        """The token budget at full size."""
        tokens: int = self.full["budget"]["total_tokens"]
        return tokens

    @property
    def own_sections(self) -> YamlTree:
        """The recipe's own sections at full size, without machine and scale."""
        return {key: value for key, value in self.full.items() if key in SECTIONS}


def compose_own_sections(arguments: Arguments) -> YamlTree:
    """Compose the recipe's own sections, before any rule and any key of the user."""
    with compose_recipe_tree(arguments, anywhere=True) as draft:
        return draft.own_sections


@contextmanager
def compose_recipe_tree(
    arguments: Arguments, *, anywhere: bool = False, keys: Mapping[str, Any] = NO_KEYS
) -> Iterator[RecipeTree]:
    """Yield the tree that ``arguments`` choose, with ``keys`` as if the recipe set them.

    Errors raised inside the context name the lines of a file that was given by its path. Paths
    in a received file must be in the working folder, unless ``anywhere``.
    """
    named, from_file = UserOverrides(arguments.values), UserOverrides(arguments.file_values)
    source = read_source(arguments.recipe)
    bundle = source.came if isinstance(source.came, Lock) else None
    if bundle is not None:
        arguments = with_bundle(arguments, bundle)
    values = arguments.all_values
    try:
        tree = compose_groups(source.came, _choose_at_home(arguments, source.came))
        for key, value in keys.items():
            _set_key(tree, key, value)
        full = resolve_references(tree)
        for key, value in values.items():
            _set_key(tree, key, value)
        tree = resolve_references(tree) if values else deepcopy(full)
        if not anywhere:
            source.check_places(tree, named, from_file)
        yield RecipeTree(tree, values, full, bundle)
    except RecipeError as error:
        raise error if named.is_overridden(error.path) else source.locate_error(error) from None


def resolve_recipe(tree: YamlTree, values: Iterable[str], full: YamlTree) -> Recipe:
    """Resolve and check a tree. ``recompute: auto`` becomes the least one that fits."""
    if not leaves_recompute_open(tree):
        return resolve_tree(tree, values, full)
    from components.planner.recompute import least_that_fits  # slow: the planner

    plain = resolve_tree(without_recompute(tree), values, full)
    recompute, every = least_that_fits(plain)
    chosen = {"recompute": recompute, "recompute_every": every}
    degrees = plain.model_dump(mode="json")["parallelism"] | chosen
    return change_recipe(plain, {"parallelism": degrees})


def without_recompute(tree: YamlTree) -> YamlTree:
    """Return a copy of a tree that recomputes nothing."""
    nothing = {"recompute": "none", "recompute_every": 1}
    return {**deepcopy(tree), "parallelism": {**tree["parallelism"], **nothing}}


def _choose_at_home(arguments: Arguments, source: RecipeChain | Lock) -> dict[str, str]:
    """Default to the home cluster for a plan, and to full size on the home cluster."""
    choices = dict(arguments.choices)
    sections = source.composed if isinstance(source, Lock) else source.merged_tree
    home = sections.get("reference_cluster") if isinstance(sections, Mapping) else None
    if not isinstance(home, str):
        return choices
    if arguments.action == "plan":
        choices.setdefault("cluster", home)
    if choices.get("cluster", LOCAL) == home:
        choices.setdefault("scale", "full")
    return choices


def _set_key(tree: YamlTree, key: str, value: Any) -> None:
    """Set the value of an existing key, or of a key below an open section."""
    check_content(value, key)
    *parents, last = key.split(".")
    here: Any = tree
    for depth, step in enumerate(parents):
        path = ".".join(parents[: depth + 1])
        if step not in here and is_open(path):
            here[step] = {}
        _check_known(here, path, key, tree)
        text = here[step]
        if isinstance(text, str) and (whole := REFERENCE.fullmatch(text)):
            # Copy the referenced mapping so that one key of the copy can be set.
            target = find_target(tree, whole[1])
            here[step] = dict(target) if isinstance(target, dict) else text
        here = here[step]
        if not isinstance(here, dict):
            raise RecipeError(key, f"{path} is a value and has no keys", f"write {path}=...")
    if not is_open(key) or (value is None and key.startswith(REMOVABLE)):
        _check_known(here, key, key, tree)
    here[last] = value


def _check_known(here: YamlTree, path: str, key: str, tree: YamlTree) -> None:
    """Raise if neither the tree nor the class of its node has this step of ``key``."""
    parent, _, step = path.rpartition(".")
    known = list(here)
    if "_target_" in here:
        known += find_spec(here["_target_"], f"{parent}._target_").list_keys()
    if step not in known:
        top = [*COMMAND_KEYS] if not parent else []
        fix = suggest_key(key, sorted({*known, *top}), tree, step=step)
        raise RecipeError(path, "unknown key", fix)
