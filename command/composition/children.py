"""Compose the recipes of child runs: the root recipe with each child's keys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from command.arguments import Arguments, check_option, list_config_groups
from command.composition.recipe_tree import compose_recipe_tree, resolve_recipe
from components.config.children import (
    CHILDREN,
    resolve_parent_tokens,
    select_subtree,
    sort_by_parent,
)
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.children import Child
from components.config.schema.types import to_frozen
from components.config.start import START, check_start, shrink_budget, shrink_tokens
from components.config.user_overrides import UserOverrides
from components.config.validation import read_section
from components.errors import RecipeError

YamlTree = dict[str, Any]


@dataclass(frozen=True)
class ComposedNode:
    """A node that has checkpoints: its recipe, and its token budget at full size."""

    recipe: Recipe
    full_tokens: int


@dataclass(frozen=True)
class RootRun(ComposedNode):
    """The root run of composed children: its arguments, and whether it allows outside paths."""

    arguments: Arguments
    anywhere: bool


def pop_children(tree: YamlTree) -> dict[str, Child]:
    """Remove the ``children`` section from a composed tree and validate its fields."""
    section = tree.pop(CHILDREN, None) or {}
    if not isinstance(section, dict):
        raise RecipeError(CHILDREN, f"{section!r} is not a mapping", "write NAME: {with: ...}")
    return {
        name: read_section(Child, node if isinstance(node, dict) else {}, f"{CHILDREN}.{name}")
        for name, node in section.items()
    }


def compose_children(
    root: RootRun, children: Mapping[str, Child]
) -> tuple[Recipe, dict[str, Recipe]]:
    """Compose all children; return the root's recipe with them, and the runs' recipes."""
    nodes: dict[str | None, ComposedNode] = {None: root}
    resolved: dict[str, Child] = {}
    for name in sort_by_parent(children):
        child, parent = children[name], nodes[children[name].of]
        source = resolved.get(child.of or "")
        if source is not None and source.merge is not None:
            child = child.model_copy(update={"at_tokens": source.at_tokens})
        else:
            child = _shrink_tokens(root, name, child, parent)
        tokens = resolve_parent_tokens(name, child, parent.recipe)
        child = child.model_copy(update={"at_tokens": tokens})
        if child.takes is not None:
            nodes[name] = _compose_child(root, name, child, parent)
            fingerprint = compute_fingerprint(nodes[name].recipe)
            if child.fingerprint not in {None, fingerprint}:
                problem = "the child has changed since this file was written"
                fix = "compare the recipes with action=diff"
                raise RecipeError(f"{CHILDREN}.{name}.fingerprint", problem, fix)
            child = child.model_copy(update={"fingerprint": fingerprint})
        elif child.merge is not None:
            nodes[name] = parent
        resolved[name] = child
    runs = {
        name: _with_children(nodes[name].recipe, select_subtree(resolved, name))
        for name, child in resolved.items()
        if child.takes is not None
    }
    return _with_children(root.recipe, resolved), runs


def _with_children(recipe: Recipe, children: Mapping[str, Child]) -> Recipe:
    return recipe.model_copy(update={CHILDREN: to_frozen(children)}) if children else recipe


def _shrink_tokens(root: RootRun, name: str, child: Child, parent: ComposedNode) -> Child:
    """Scale the token positions of a node in a miniature run."""
    total = parent.recipe.budget.total_tokens
    if parent.recipe.scale.shrink == "none" or total >= parent.full_tokens:
        return child
    named, scaled = UserOverrides(root.arguments.values), {}
    for key in ("at_tokens", "every_tokens"):
        tokens = getattr(child, key)
        if tokens is not None and not named.is_overridden(f"{CHILDREN}.{name}.{key}"):
            multiple = shrink_tokens(tokens, parent.recipe, parent.full_tokens)
            scaled[key] = multiple if key == "every_tokens" else min(multiple, total)
    return child.model_copy(update=scaled)


def _compose_child(
    root: RootRun, name: str, child: Child, parent: ComposedNode
) -> ComposedNode:
    arguments, keys = _child_arguments(root.arguments, child)
    try:
        with compose_recipe_tree(arguments, anywhere=root.anywhere, keys=keys) as draft:
            pop_children(draft.tree)
        if UserOverrides(root.arguments.values).is_overridden(f"{CHILDREN}.{name}.set"):
            draft.values.update(keys)  # as final as the user's other words
        draft.tree[START] = {
            "recipe": parent.recipe.name,
            "at_tokens": child.at_tokens,
            "with": child.takes,
            "fingerprint": compute_fingerprint(parent.recipe),
        }
        if root.recipe.scale.shrink != "none":
            shrink_budget(draft.tree, parent.recipe, parent.full_tokens, draft.values)
        recipe = resolve_recipe(draft.tree, draft.values, draft.full)
        check_start(recipe, parent.recipe)
    except RecipeError as error:
        problem = f"{error.path}: {error.problem}"
        raise RecipeError(f"{CHILDREN}.{name}", problem, error.remedy) from None
    return ComposedNode(recipe, draft.full_tokens)


def _child_arguments(arguments: Arguments, child: Child) -> tuple[Arguments, dict[str, Any]]:
    """Return the root's arguments with the child's choices, and the child's keys."""
    known = list_config_groups()
    chosen = {
        key: check_option(key, value, known[key])
        for key, value in child.set.items()
        if key in known
    }
    keys = {key: value for key, value in child.set.items() if key not in known}
    replaced = {CHILDREN, START, *chosen}
    remaining = {
        key: value
        for key, value in arguments.all_values.items()
        if key not in keys and key.partition(".")[0] not in replaced
    }
    mine = replace(
        arguments,
        choices={**arguments.choices, **chosen},
        values={key: value for key, value in remaining.items() if key in arguments.values},
        file_values={
            key: value for key, value in remaining.items() if key not in arguments.values
        },
    )
    return mine, keys
