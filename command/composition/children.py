"""Recipes of the runs below a run: the trunk's own, with the keys that each child sets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from command.arguments import Arguments, check_option, groups
from command.composition.recipe_tree import compose_recipe_tree, resolve_recipe
from components.config.children import CHILDREN, below, ordered, settled_tokens
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.children import Child
from components.config.schema.types import freeze
from components.config.start import START, check_start, shrink_budget, shrink_tokens
from components.config.user_overrides import UserOverrides
from components.config.validation import read_section
from components.errors import RecipeError

Tree = dict[str, Any]


@dataclass(frozen=True)
class ComposedNode:
    """A node that has checkpoints: its recipe, and its tokens at full size."""

    recipe: Recipe
    full_tokens: int


@dataclass(frozen=True)
class RootRun(ComposedNode):
    """The run whose children are composed, from which words, and whether paths are checked."""

    arguments: Arguments
    anywhere: bool


def pop_children(tree: Tree) -> dict[str, Child]:
    """Take the section out of a composed tree; its fields are checked.

    Raises:
        RecipeError: it is no mapping of nodes, or one of them has what no node has.
    """
    section = tree.pop(CHILDREN, None) or {}
    if not isinstance(section, dict):
        raise RecipeError(CHILDREN, f"{section!r} is no mapping", "write NAME: {with: ...}")
    return {
        name: read_section(Child, node if isinstance(node, dict) else {}, f"{CHILDREN}.{name}")
        for name, node in section.items()
    }


def compose_children(
    root: RootRun, children: Mapping[str, Child]
) -> tuple[Recipe, dict[str, Recipe]]:
    """Compose every child; return the root's recipe with them settled, and the runs' recipes.

    Raises:
        RecipeError: a child that does not compose, or cannot come from its parent, by its name.
    """
    nodes: dict[str | None, ComposedNode] = {None: root}
    settled: dict[str, Child] = {}
    for name in ordered(children):
        child, parent = children[name], nodes[children[name].of]
        source = settled.get(child.of or "")
        if source is not None and source.merge is not None:
            child = child.model_copy(update={"at_tokens": source.at_tokens})
        else:
            child = _shrink_tokens(root, name, child, parent)
        tokens = settled_tokens(name, child, parent.recipe)
        child = child.model_copy(update={"at_tokens": tokens})
        if child.takes is not None:
            nodes[name] = _compose_child(root, name, child, parent)
            fingerprint = compute_fingerprint(nodes[name].recipe)
            if child.fingerprint not in {None, fingerprint}:
                problem = "it is another run than the one that this was made with"
                fix = "action=diff says what differs"
                raise RecipeError(f"{CHILDREN}.{name}.fingerprint", problem, fix)
            child = child.model_copy(update={"fingerprint": fingerprint})
        elif child.merge is not None:
            nodes[name] = parent
        settled[name] = child
    runs = {
        name: _with_children(nodes[name].recipe, below(settled, name))
        for name, child in settled.items()
        if child.takes is not None
    }
    return _with_children(root.recipe, settled), runs


def _with_children(recipe: Recipe, children: Mapping[str, Child]) -> Recipe:
    return recipe.model_copy(update={CHILDREN: freeze(children)}) if children else recipe


def _shrink_tokens(root: RootRun, name: str, child: Child, parent: ComposedNode) -> Child:
    """Scale the place of a miniature's node, as that of a run that comes from one."""
    total = parent.recipe.budget.total_tokens
    if parent.recipe.scale.shrink == "none" or total >= parent.full_tokens:
        return child
    named, scaled = UserOverrides(root.arguments.values), {}
    for key in ("at_tokens", "every_tokens"):
        tokens = getattr(child, key)
        if tokens is not None and not named.covers(f"{CHILDREN}.{name}.{key}"):
            multiple = shrink_tokens(tokens, parent.recipe, parent.full_tokens)
            scaled[key] = multiple if key == "every_tokens" else min(multiple, total)
    return child.model_copy(update=scaled)


def _compose_child(
    root: RootRun, name: str, child: Child, parent: ComposedNode
) -> ComposedNode:
    """Compose the run of a child whose parent is composed."""
    arguments, keys = _child_arguments(root.arguments, child)
    try:
        with compose_recipe_tree(arguments, anywhere=root.anywhere, keys=keys) as draft:
            pop_children(draft.tree)
        if UserOverrides(root.arguments.values).covers(f"{CHILDREN}.{name}.set"):
            draft.values.update(keys)  # as final as the user's other words
        draft.tree[START] = {
            "recipe": parent.recipe.name,
            "at_tokens": child.at_tokens,
            "with": child.takes,
            "fingerprint": compute_fingerprint(parent.recipe),
        }
        if root.recipe.scale.shrink != "none":
            shrink_budget(draft.tree, parent.recipe, parent.full_tokens, draft.values)
        recipe = resolve_recipe(draft)
        check_start(recipe, parent.recipe)
    except RecipeError as error:
        problem = f"{error.path}: {error.problem}"
        raise RecipeError(f"{CHILDREN}.{name}", problem, error.remedy) from None
    return ComposedNode(recipe, draft.full_tokens)


def _child_arguments(arguments: Arguments, child: Child) -> tuple[Arguments, dict[str, Any]]:
    """Return the words of the root without those that the child replaces, and its own keys."""
    known = groups()
    chosen = {
        key: check_option(key, value, known[key])
        for key, value in child.set.items()
        if key in known
    }
    keys = {key: value for key, value in child.set.items() if key not in known}
    replaced = {CHILDREN, START, *chosen}
    kept = {
        key: value
        for key, value in arguments.all_values.items()
        if key not in keys and key.partition(".")[0] not in replaced
    }
    mine = replace(
        arguments,
        choices={**arguments.choices, **chosen},
        values={key: value for key, value in kept.items() if key in arguments.values},
        file_values={key: value for key, value in kept.items() if key not in arguments.values},
    )
    return mine, keys
