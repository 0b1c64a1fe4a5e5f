"""Recipes of the phases of a run: the run's recipe with the keys of one phase.

All phases share the run's clock, order of samples and fingerprint, so a checkpoint belongs to
the run, independent of the phase that wrote it.
"""

from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

from components.config import layout
from components.config.limits import check_multiple
from components.config.part_nodes import check_nodes
from components.config.recipe import Recipe
from components.config.rules.check import check_phase_start, check_rules
from components.config.schema.phases import RunPhase
from components.config.schema.sections import Parallelism
from components.config.schema.types import to_plain
from components.config.user_overrides import MutableTree, UserOverrides, iterate_leaves
from components.config.validation import read_section
from components.errors import RecipeError

CHANGED = ("budget", "model", "data", "precision", "parallelism")
OWN = "phases"  # schedule.phases and data.phases are different sections


def recipe_at(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe of the step that follows the first ``step`` steps."""
    return recipe_of(recipe, recipe.token_clock.span_of(step).name)


def recipe_before(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe of the last of the first ``step`` steps."""
    return recipe_at(recipe, max(0, step - 1))


def recipes_of(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes of all phases in order; ``""`` is the part before the first phase."""
    return {span.name: recipe_of(recipe, span.name) for span in recipe.token_clock.spans}


def recipe_of(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe of one phase; ``""`` is the part before the first phase."""
    if not name:
        return recipe
    composed = recipe._recipes_by_phase.get(name)
    if composed is not None and composed.whole_run is recipe:  # else of a copy of the recipe
        return composed
    try:
        phase_recipe = read_section(Recipe, _merged(recipe, name), "")
        phase_recipe._whole, phase_recipe._phase = recipe, name
        check_rules(phase_recipe)
        _check_weights(recipe, phase_recipe)
    except RecipeError as error:
        where = error.path.removeprefix("recipe.")
        problem = f"invalid {where} in this phase: {error.problem}"
        raise RecipeError(f"{OWN}.{name}", problem, error.remedy) from None
    recipe._recipes_by_phase[name] = phase_recipe
    return phase_recipe


def fresh_step_of(recipe: Recipe) -> int | None:
    """Return the first step of a phase with ``fresh_optimizer``, else None."""
    phase = recipe.whole_run.phases.get(recipe.phase_span.name)
    return recipe.phase_span.first_step if phase and phase.fresh_optimizer else None


def changed_keys(phase: RunPhase) -> dict[str, Any]:
    """Return the values that a phase changes, by their paths in the recipe."""
    return {
        path: value
        for section in CHANGED
        for path, value in iterate_leaves(to_plain(getattr(phase, section)), section)
    }


def put_in(tree: MutableTree, phase: Mapping[str, Any]) -> None:
    """Merge a phase's tree into a recipe's; a node with ``_target_`` replaces the old node."""
    for section in CHANGED:
        _put(tree[section], phase.get(section, {}))


def _put(tree: MutableTree, changed: Mapping[str, Any]) -> None:
    for key, value in changed.items():
        there = tree.get(key)
        if isinstance(value, Mapping) and isinstance(there, dict) and "_target_" not in value:
            _put(there, value)
        else:
            tree[key] = deepcopy(value)


def _merged(recipe: Recipe, name: str) -> MutableTree:
    """Return the recipe tree of a phase, with its data degree derived from the run's ranks."""
    tree, phase = recipe.model_dump(mode="json"), recipe.phases[name]
    del tree[OWN]
    degrees, keys = recipe.parallelism, changed_keys(phase)
    put_in(tree, phase.model_dump(mode="json"))
    tree["budget"]["ramp_up"] = "none"
    if degrees.data_shard == degrees.data * degrees.expert:
        tree["parallelism"]["data_shard"] = keys.get("parallelism.data_shard", "auto")
    check_nodes(tree)
    # Check types first: deriving the layout needs numbers.
    read_section(Parallelism, layout.with_placeholders(tree["parallelism"]), "parallelism")
    layout.resolve_layout(tree, UserOverrides(keys))
    return tree


def _check_weights(recipe: Recipe, phase: Recipe) -> None:
    if phase.derived_numbers.parameters != recipe.derived_numbers.parameters:
        problem = "the phase changes the shapes of the weights"
        raise RecipeError("model.positions", problem, "change only base or scaling")


def check_phases(recipe: Recipe) -> None:
    """Raise a RecipeError for the first phase with an invalid recipe."""
    for name in recipe.phases:
        recipe_of(recipe, name)


def check_starts(recipe: Recipe) -> None:
    """Raise a RecipeError for the first phase with an invalid start or batch size."""
    total, ramp = recipe.budget.total_tokens, recipe.budget.ramp_up
    for name, phase in recipe.phases.items():
        path = f"{OWN}.{name}"
        check_phase_start(path, phase, total)
        length = phase.budget.sequence_length or recipe.budget.sequence_length
        batch = phase.budget.global_batch_tokens or recipe.budget.global_batch_tokens
        check_multiple(f"{path}.budget.global_batch_tokens", batch, "sequence_length", length)
        if not isinstance(ramp, str) and phase.first_token(total) < ramp.over_tokens:
            problem = f"it starts within the batch ramp-up of {ramp.over_tokens:,} tokens"
            raise RecipeError(path, problem, "start the phase later, or shorten budget.ramp_up")
    starts = sorted((phase.first_token(total), name) for name, phase in recipe.phases.items())
    for (first, earlier), (second, later) in pairwise(starts):
        if first == second:
            problem = f"starts at {first:,} tokens, the same as {OWN}.{earlier}"
            raise RecipeError(f"{OWN}.{later}", problem, "start this phase later, or remove it")
