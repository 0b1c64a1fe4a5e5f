"""The layouts that a search lists are those that the recipe's own validation lets through."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.config.rules.check import check_rules
from components.config.schema.sections import Parallelism
from components.config.stages import SPLIT_SCHEDULES, splits_backward
from components.errors import RecipeError
from components.planner.layouts import SEARCHED, Layouts

AXES = ("data", "tensor", "pipeline", "expert", "context")
WORLDS = [
    ["recipe=teuken7b", "cluster.ranks=8", "budget.global_batch_tokens=2048"],
    ["recipe=teuken7b", "cluster.ranks=6", "budget.global_batch_tokens=3072"],
    ["recipe=mula7b_a1b", "cluster.ranks=8"],
    ["recipe=bloom176b", "cluster.ranks=4"],
    ["recipe=gpt3b6", "cluster.ranks=2", "parallelism.engine=deepspeed"],
]


def template(words: list[str]) -> Recipe:
    """A settled miniature that does not yet remember what follows from its degrees."""
    return compose_recipe(read_point(words)).model_copy()


def listed(recipe: Recipe, *fixed: str) -> set[tuple[object, ...]]:
    layouts = Layouts(recipe, ranks=recipe.cluster.ranks, fixed=frozenset(fixed))
    found = [
        key(family.degrees.model_copy(update={"microbatch_sequences": size}))
        for family in layouts.iterate_families()
        for size in family.sizes
    ]
    assert len(found) == len(set(found)) == layouts.legal
    return set(found)


def key(degrees: Parallelism) -> tuple[object, ...]:
    return tuple(getattr(degrees, name) for name in SEARCHED)


def brute_force(recipe: Recipe) -> Iterator[Parallelism]:
    """Ask the whole validation about every product of values."""
    ranks, base = recipe.cluster.ranks, recipe.parallelism
    degrees = [n for n in range(1, ranks + 1) if ranks % n == 0]
    settings: dict[str, Any] = {
        "zero": range(4),
        "sequence_parallel": (False, True),
        "microbatch_sequences": range(1, recipe.derived_numbers.samples_per_step + 1),
        "recompute": {"none", "selective", "full", base.recompute},
        "schedule": ("1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"),
        "stages_per_rank": (1, 2, 4),
    }
    for places in product(degrees, repeat=5):
        if prod(places) != ranks:
            continue
        axes = dict(zip(AXES, places, strict=True))
        shard = {"data_shard": axes["data"] * axes["expert"]}
        for chosen in product(*settings.values()):
            update = axes | shard | dict(zip(settings, chosen, strict=True))
            yield base.model_copy(update=update)


def is_legal(recipe: Recipe, degrees: Parallelism) -> bool:
    changed = recipe.model_copy(update={"parallelism": degrees})
    for name in ("derived", "stages"):
        changed.__dict__.pop(name, None)
    try:
        check_rules(changed)
    except RecipeError:
        return False
    return True


def is_listed_once(recipe: Recipe, degrees: Parallelism) -> bool:
    """Of layouts that do the same, take the recipe's own; cut sequences where that is legal."""
    base = recipe.parallelism
    schedules = (degrees.schedule, degrees.stages_per_rank)
    if degrees.pipeline == 1 and schedules != (base.schedule, base.stages_per_rank):
        return False
    whole = degrees.schedule in SPLIT_SCHEDULES and not splits_backward(degrees)
    if whole and degrees.pipeline > 1 and degrees.schedule != base.schedule:
        return False  # made to split what stays whole
    if recipe.decoder_spec.mlp.num_experts and (
        degrees.microbatch_sequences != base.microbatch_sequences
    ):
        return False  # routers are balanced over each microbatch
    if degrees.tensor == 1:
        return degrees.sequence_parallel == base.sequence_parallel
    cut = degrees.model_copy(update={"sequence_parallel": True})
    return degrees.sequence_parallel or not is_legal(recipe, cut)


@pytest.mark.quick(
    "recipe=gpt3b6 cluster.ranks=2 parallelism.engine=deepspeed",
    "recipe=mula7b_a1b cluster.ranks=8",
)
@pytest.mark.parametrize("words", WORLDS, ids=lambda words: " ".join(words))
def test_listed_layouts_are_the_valid_layouts(words: list[str]) -> None:
    recipe = template(words)
    candidates = list(brute_force(recipe))
    recipe = recipe.model_copy()
    for name in ("derived", "stages"):
        recipe.__dict__.pop(name, None)
    legal = {
        key(degrees)
        for degrees in candidates
        if is_listed_once(recipe, degrees) and is_legal(recipe, degrees)
    }
    assert len(legal) > 1
    assert listed(recipe) == legal


def test_a_named_key_keeps_its_value_and_nothing_else_is_lost() -> None:
    recipe = template(["recipe=teuken7b", "cluster.ranks=8"])
    place = SEARCHED.index("tensor")
    kept = {one for one in listed(recipe) if one[place] == recipe.parallelism.tensor}
    assert listed(recipe, "tensor") == kept
    assert 0 < len(kept) < len(listed(recipe))


def test_expert_ranks_stay_where_they_change_the_gradients() -> None:
    words = ["recipe=mula7b_a1b", "cluster.ranks=8", "parallelism.expert_grad_average=replicas"]
    recipe = template(words)
    place = SEARCHED.index("expert")
    assert {one[place] for one in listed(recipe)} == {recipe.parallelism.expert}
