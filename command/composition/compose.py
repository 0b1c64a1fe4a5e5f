"""Compose a recipe, the parent that it starts from and its children, each once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from command.arguments import Arguments, read_point
from command.composition.children import RootRun, compose_children, pop_children
from command.composition.recipe_tree import RecipeTree, compose_recipe_tree, resolve_recipe
from command.composition.start import derive_start, read_start
from command.recipe.path_checks import places_outside
from components.config.recipe import Recipe
from components.config.start import check_start, shrink_start
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError

if TYPE_CHECKING:
    from command.composition.layout_search import SearchResult  # slow: the planner


@dataclass(frozen=True)
class ComposedRun:
    """A run's recipe with the other results of composition.

    ``draft`` is the recipe's unresolved tree. ``children`` maps names to the recipes of the
    runs below this run. The layout came from ``search``, if any.
    """

    recipe: Recipe
    draft: RecipeTree
    children: Mapping[str, Recipe] = field(default_factory=dict)
    search: "SearchResult | None" = None


def compose_recipe(arguments: Arguments, *, anywhere: bool = False) -> Recipe:
    """Compose, resolve and check the recipe that ``arguments`` choose."""
    return compose_run(arguments, anywhere=anywhere).recipe


def compose_run(
    arguments: Arguments,
    *,
    anywhere: bool = False,
    weights_only: bool = False,
    ancestors: tuple[str, ...] = (),
) -> ComposedRun:
    """Compose a recipe and the recipes of its child runs.

    With ``anywhere`` a recipe that is only read may name files outside its folder. With
    ``weights_only`` the run does not load its parent's optimizer state. ``ancestors`` are the
    recipes that start from this recipe.
    """
    with compose_recipe_tree(arguments, anywhere=anywhere) as draft:
        children = pop_children(draft.tree)
        reads_files = not (
            anywhere and places_outside(draft.tree, UserOverrides(arguments.values))
        )
        parent = _compose_parent(
            draft, ancestors, weights_only=weights_only, reads_files=reads_files
        )
        if arguments.searches:
            return _search_layout(draft, parent, arguments, has_children=bool(children))
        recipe = resolve_recipe(draft.tree, draft.values, draft.full)
        if parent is not None:
            check_start(recipe, parent)
        if not children:
            return ComposedRun(recipe, draft)
        root = RootRun(recipe, draft.full_tokens, arguments, anywhere)
        recipe, runs = compose_children(root, children)
        return ComposedRun(recipe, draft, runs)


def _compose_parent(
    draft: RecipeTree, ancestors: tuple[str, ...], *, weights_only: bool, reads_files: bool
) -> Recipe | None:
    """Compose the recipe that ``from`` names, if any, at this scale.

    At full size it is on its reference cluster: its layout may not fit this run's cluster.
    """
    start = read_start(draft.tree, weights_only=weights_only)
    if start is None:
        return None
    composed = None
    if (name := start.recipe) is not None:
        if name in ancestors:
            problem = " starts from ".join([*ancestors, name])
            raise RecipeError("from.recipe", problem, "choose a parent outside this cycle")
        cluster = draft.tree["cluster"]["name"]
        is_full = draft.tree["scale"]["shrink"] == "none"
        if is_full and draft.tree["reference_cluster"] != "local":
            cluster = draft.tree["reference_cluster"]
        chosen = (f"scale={draft.tree['scale']['name']}", f"cluster={cluster}")
        arguments = read_point([f"recipe={name}", *chosen])
        parent = compose_run(arguments, anywhere=not reads_files, ancestors=(*ancestors, name))
        composed = parent.recipe
        if not is_full:
            shrink_start(draft.tree, composed, parent.draft.full_tokens, draft.values)
    return derive_start(draft.tree, start, composed, reads_files=reads_files)


def _search_layout(
    draft: RecipeTree, parent: Recipe | None, arguments: Arguments, *, has_children: bool
) -> ComposedRun:
    if has_children:
        problem = "parallelism=auto does not support children"
        raise RecipeError("children", problem, "set the degrees that action=plan finds")
    from command.composition import layout_search  # slow: the planner

    search_problem = layout_search.SearchProblem(draft)
    result = layout_search.find_layout(search_problem, within_days=arguments.within_days)
    if parent is not None:
        check_start(result.recipe, parent)
    return ComposedRun(result.recipe, draft, search=result)
