"""The recipe of one phase of a run: the run's own, with the phase's keys in it.

All that a phase has in common with the run stays there: its clock, the order of its samples
and its fingerprint, so that one checkpoint is of the run whatever phase wrote it.
"""

from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

from components.config import layout
from components.config.batch_ramp import nearest_multiples
from components.config.part_nodes import check_nodes
from components.config.recipe import Recipe
from components.config.rules.check import check_rules
from components.config.schema.phases import RunPhase
from components.config.schema.sections import Parallelism
from components.config.schema.types import thaw
from components.config.user_overrides import Tree, UserOverrides, leaves
from components.config.validation import read_section
from components.errors import RecipeError

CHANGED = ("budget", "model", "data", "precision", "parallelism")
OWN = "phases"  # of a schedule or a mixture there are others


def recipe_at(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe by which the step after the first ``step`` ones is taken."""
    return recipe_of(recipe, recipe.clock.span_of(step).name)


def recipe_before(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe by which the last of the first ``step`` steps was taken."""
    return recipe_at(recipe, max(0, step - 1))


def recipes_of(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipe of each phase in turn, that of the steps before them under ``""``."""
    return {span.name: recipe_of(recipe, span.name) for span in recipe.clock.spans}


def recipe_of(recipe: Recipe, name: str) -> Recipe:
    """Put the keys of one phase into the recipe; ``""`` is the steps before the first one.

    Raises:
        RecipeError: a key that the recipe has not, or values that do not go together.
    """
    if not name:
        return recipe
    composed = recipe._recipes_by_phase.get(name)
    if composed is not None and composed.whole is recipe:  # else that of a copy
        return composed
    try:
        found = read_section(Recipe, _merged(recipe, name), "")
        found._whole, found._phase = recipe, name
        check_rules(found)
        _check_weights(recipe, found)
    except RecipeError as error:
        where = error.path.removeprefix("recipe.")
        problem = f"in this phase {where} does not hold: {error.problem}"
        raise RecipeError(f"{OWN}.{name}", problem, error.remedy) from None
    recipe._recipes_by_phase[name] = found
    return found


def fresh_step_of(recipe: Recipe) -> int | None:
    """Return the step before which this phase drops the optimizer's moments, if it does."""
    phase = recipe.whole.phases.get(recipe.span.name)
    return recipe.span.first_step if phase and phase.fresh_optimizer else None


def changed_keys(phase: RunPhase) -> dict[str, Any]:
    """List what a phase changes, each value under its path in the recipe."""
    return {
        path: value
        for section in CHANGED
        for path, value in leaves(thaw(getattr(phase, section)), section)
    }


def put_in(tree: Tree, phase: Mapping[str, Any]) -> None:
    """Put the keys of a phase's tree into a recipe's; what names a class replaces the other."""
    for section in CHANGED:
        _put(tree[section], phase.get(section, {}))


def _put(tree: Tree, changed: Mapping[str, Any]) -> None:
    for key, value in changed.items():
        there = tree.get(key)
        if isinstance(value, Mapping) and isinstance(there, dict) and "_target_" not in value:
            _put(there, value)
        else:
            tree[key] = deepcopy(value)


def _merged(recipe: Recipe, name: str) -> Tree:
    """Settle the phase's layout on the ranks of the run: the data degree is what is left."""
    tree, phase = recipe.model_dump(mode="json"), recipe.phases[name]
    del tree[OWN]
    degrees, keys = recipe.parallelism, changed_keys(phase)
    put_in(tree, phase.model_dump(mode="json"))
    tree["budget"]["ramp_up"] = "none"
    if degrees.data_shard == degrees.data * degrees.expert:
        tree["parallelism"]["data_shard"] = keys.get("parallelism.data_shard", "auto")
    check_nodes(tree)
    # Types first: whoever settles the layout counts on them.
    typed = {key: 1 if one == "auto" else one for key, one in tree["parallelism"].items()}
    read_section(Parallelism, typed, "parallelism")
    layout.settle_layout(tree, UserOverrides(keys))
    return tree


def _check_weights(recipe: Recipe, phase: Recipe) -> None:
    if phase.derived.parameters != recipe.derived.parameters:
        problem = "the model has other weights than before"
        raise RecipeError("model.positions", problem, "change what has no weights, as base")


def check_phases(recipe: Recipe) -> None:
    """Raise a RecipeError for the first phase whose recipe does not hold."""
    for name in recipe.phases:
        recipe_of(recipe, name)


def check_starts(recipe: Recipe) -> None:
    """Raise a RecipeError for the first phase that has no place on the clock of the run."""
    total = recipe.budget.total_tokens
    for name, phase in recipe.phases.items():
        path = f"{OWN}.{name}"
        if (phase.from_tokens is None) == (phase.from_fraction is None):
            problem = "says not once where it begins"
            raise RecipeError(path, problem, "give it either from_tokens or from_fraction")
        if phase.first_token(total) >= total:
            problem = (
                f"{phase.first_token(total):,} is not inside the budget of {total:,} tokens"
            )
            remedy = "let it begin earlier, or leave it out"
            raise RecipeError(f"{path}.from_tokens", problem, remedy)
        length = phase.budget.sequence_length or recipe.budget.sequence_length
        batch = phase.budget.global_batch_tokens or recipe.budget.global_batch_tokens
        if batch % length:
            problem = f"a batch of {batch:,} tokens is no multiple of {length:,}, its length"
            remedy = nearest_multiples(batch, length)
            raise RecipeError(f"{path}.budget.global_batch_tokens", problem, remedy)
        ramp = recipe.budget.ramp_up
        if not isinstance(ramp, str) and phase.first_token(total) < ramp.over_tokens:
            problem = f"begins while the batch ramps up, over {ramp.over_tokens:,} tokens"
            raise RecipeError(path, problem, "let it begin later, or shorten budget.ramp_up")
    starts = sorted((one.first_token(total), name) for name, one in recipe.phases.items())
    for (first, earlier), (second, later) in pairwise(starts):
        if first == second:
            problem = f"begins after {first:,} tokens, as {OWN}.{earlier} does"
            raise RecipeError(f"{OWN}.{later}", problem, "let it begin later, or leave it out")
