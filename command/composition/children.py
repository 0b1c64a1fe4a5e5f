"""Recipes of the runs below a run: the trunk's own, with the keys that each child sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from command.arguments import Arguments, check_option, groups
from command.composition.settling import settle
from components.config.check import check_recipe
from components.config.children import CHILDREN, below, ordered, settled_tokens
from components.config.fingerprint import compute_fingerprint
from components.config.parent import PARENT, check_parent, shrink_beginning, step_end
from components.config.recipe import Recipe
from components.config.schema.children import Child
from components.config.user_overrides import UserOverrides
from components.config.validation import read_section
from components.errors import RecipeError

Tree = dict[str, Any]
Composed = Callable[[Arguments, Mapping[str, Any]], tuple[Tree, Tree, Tree]]


@dataclass(frozen=True)
class ComposedNode:
    """A node that has checkpoints: its recipe, and its tokens at full size."""

    recipe: Recipe
    full_tokens: int


@dataclass(frozen=True)
class RootRun:
    """A run whose children are composed, and how the files of a child are grouped."""

    recipe: Recipe
    arguments: Arguments
    full_tokens: int
    compose: Composed


def pop_children(tree: Tree) -> dict[str, Child]:
    """Take the section out of a composed tree; its fields are checked.

    Raises:
        RecipeError: it is no mapping of nodes, or one of them has what no node has.
    """
    section = tree.pop(CHILDREN, None) or {}
    if not isinstance(section, dict):
        raise RecipeError(CHILDREN, f"{section!r} is no mapping", "write NAME: {with: ...}")
    return {
        name: read_section(Child, one if isinstance(one, dict) else {}, f"{CHILDREN}.{name}")
        for name, one in section.items()
    }


def compose_children(
    trunk: RootRun, children: Mapping[str, Child]
) -> tuple[Recipe, dict[str, Recipe]]:
    """Compose every child; return the trunk's recipe with them settled, and the runs' recipes.

    Raises:
        RecipeError: a child that does not compose, or cannot come from its parent, by its name.
    """
    grown: dict[str | None, ComposedNode] = {
        None: ComposedNode(trunk.recipe, trunk.full_tokens)
    }
    settled: dict[str, Child] = {}
    for name in ordered(children):
        child, parent = children[name], grown[children[name].of]
        above = settled.get(child.of or "")
        if above is not None and above.merge is not None:
            child = child.model_copy(update={"at_tokens": above.at_tokens})
        else:
            child = _shrunk(trunk, name, child, parent)
        tokens = settled_tokens(name, child, parent.recipe)
        child = child.model_copy(update={"at_tokens": tokens})
        if child.takes is not None:
            try:
                grown[name] = _run(trunk, name, child, parent)
            except RecipeError as error:
                problem = f"{error.path}: {error.problem}"
                raise RecipeError(f"{CHILDREN}.{name}", problem, error.remedy) from None
            found = {"fingerprint": compute_fingerprint(grown[name].recipe)}
            if child.fingerprint not in {None, found["fingerprint"]}:
                problem = "it is another run than the one that this was made with"
                remedy = "action=diff says what differs"
                raise RecipeError(f"{CHILDREN}.{name}.fingerprint", problem, remedy)
            child = child.model_copy(update=found)
        elif child.merge is not None:
            grown[name] = parent
        settled[name] = child
    recipe = _with(trunk.recipe, settled)
    runs = {name: one.recipe for name, one in grown.items() if name and settled[name].takes}
    return recipe, {name: _with(one, below(settled, name)) for name, one in runs.items()}


def _with(recipe: Recipe, children: Mapping[str, Child]) -> Recipe:
    if not children:
        return recipe
    tree = recipe.model_dump(mode="json")
    tree[CHILDREN] = {name: one.model_dump(mode="json") for name, one in children.items()}
    return check_recipe(tree)


def _shrunk(trunk: RootRun, name: str, child: Child, parent: ComposedNode) -> Child:
    """Give a node of a miniature its place, as a run that comes from one has it."""
    small, every = parent.recipe.budget.total_tokens, parent.recipe.checkpoint.every_tokens
    if parent.recipe.scale.shrink == "none" or small >= parent.full_tokens:
        return child
    found = {}
    for key in ("at_tokens", "every_tokens"):
        tokens, named = getattr(child, key), UserOverrides(trunk.arguments.values)
        if tokens is not None and not named.covers(f"{CHILDREN}.{name}.{key}"):
            multiple = max(1, round(tokens * small / parent.full_tokens / every)) * every
            found[key] = multiple if key == "every_tokens" else min(multiple, small)
    return child.model_copy(update=found)


def _run(trunk: RootRun, name: str, child: Child, parent: ComposedNode) -> ComposedNode:
    """Compose the run of a child, its parent being known."""
    known, arguments = groups(), trunk.arguments
    chosen = {
        key: check_option(key, value, known[key])
        for key, value in child.set.items()
        if key in known
    }
    keys = {key: value for key, value in child.set.items() if key not in known}
    own = {
        key: value
        for key, value in arguments.all_values.items()
        if key not in keys and key.partition(".")[0] not in {CHILDREN, PARENT, *chosen}
    }
    mine = replace(
        arguments,
        choices={**arguments.choices, **chosen},
        values={key: value for key, value in own.items() if key in arguments.values},
        file_values={key: value for key, value in own.items() if key not in arguments.values},
    )
    tree, values, full = trunk.compose(mine, keys)
    if UserOverrides(arguments.values).covers(f"{CHILDREN}.{name}.set"):
        values = {**values, **keys}  # as final as the user's other words
    at = step_end(parent.recipe, child.at_tokens or 0)
    tree[PARENT] = {
        "recipe": parent.recipe.name,
        "at_tokens": at,
        "with": child.takes,
        "fingerprint": compute_fingerprint(parent.recipe),
    }
    full_tokens = full["budget"]["total_tokens"]
    if trunk.recipe.scale.shrink != "none":
        # Its place is settled: what is left to shrink is its budget.
        values = {**values, f"{PARENT}.at_tokens": at}
        shrink_beginning(tree, parent.recipe, parent.full_tokens, values)
        values.pop(f"{PARENT}.at_tokens")
    recipe = settle(tree, values, full)
    check_parent(recipe, parent.recipe)
    return ComposedNode(recipe, full_tokens)
