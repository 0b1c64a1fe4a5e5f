"""Which ranks stand for which, and what is said of a role beside its plan."""

from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.dryrun.rank_roles import (
    RoleError,
    compare_role,
    rehearse_roles,
    roles_of,
    step_flops,
)
from components.dryrun.rehearsal import microbatches_to_rehearse
from components.dryrun.trackers import CollectiveKind, sent_bytes
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.software import OURS, read_software


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=bloom176b", "cluster=jean_zay", *words]))


def test_equal_stages_are_one_role_and_every_rank_is_stood_for() -> None:
    recipe = composed()
    roles = roles_of(recipe)
    assert [(role.layers, role.first, role.last) for role in roles] == [
        ((5,), True, False),
        ((6,), False, False),
        ((5,), False, True),
    ]
    assert [role.stands_for for role in roles] == [32, 320, 32]
    for role in roles:
        places = recipe.rank_groups.find_coordinates(role.rank)
        assert places.pop("pipeline") == role.pipeline_rank
        assert set(places.values()) == {0}


def test_in_a_v_the_first_rank_has_both_ends_and_the_last_of_equal_ones_is_played() -> None:
    words = ("parallelism.schedule=zbv", "parallelism.stages_per_rank=2")
    roles = roles_of(
        composed(*words, "model.num_layers=72", "parallelism.stage_balance=layers")
    )
    assert [(role.layers, role.first, role.last) for role in roles] == [
        ((3, 3), True, True),
        ((3, 3), False, False),
    ]
    assert [role.pipeline_rank for role in roles] == [0, 11]
    assert [role.stands_for for role in roles] == [32, 352]


def test_a_stage_with_other_layers_is_a_role_of_its_own() -> None:
    roles = roles_of(composed("model.num_layers=73", "parallelism.stage_balance=layers"))
    assert len(roles) == 4
    assert sum(role.stands_for for role in roles) == 384


@pytest.mark.parametrize(
    ("words", "rehearsed"),
    [
        ((), 5),
        (("parallelism.schedule=gpipe",), 64),
        (("parallelism.schedule=interleaved", "parallelism.stages_per_rank=2"), 12),
        (("parallelism.schedule=zbv", "parallelism.stages_per_rank=2"), 9),
        (("parallelism.schedule=dualpipev", "parallelism.stages_per_rank=2"), 9),
        (("parallelism.pipeline=1", "parallelism.data=16"), 2),
    ],
)
def test_as_many_microbatches_are_rehearsed_as_reach_the_peak(words, rehearsed):
    recipe = compose_recipe(read_point(["recipe=playbook80b", "cluster=hopper", *words]))
    assert microbatches_to_rehearse(recipe) == rehearsed


GIB = 2**30
WORDS = ("recipe=playbook80b", "cluster=hopper")


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return compose_recipe(read_point(list(WORDS)))


@pytest.fixture(scope="module")
def plan(recipe: Recipe) -> Plan:
    return plan_recipe(recipe)


def found(plan: Plan, **changed: float) -> dict[str, Any]:
    """Write what a dry run would, were the plan of the first rank right."""
    memory, fragmentation = plan.memory.ranks[0], read_software(OURS).memory.fragmentation
    held = {
        "weights": memory.states.weights,
        "gradients": memory.states.gradients,
        "optimizer": memory.states.master + memory.states.optimizer,
        "casts": memory.casts,
        "activations": memory.activations / fragmentation,
        "temporary": memory.loss + memory.buffers,
    } | changed
    peak = {"by_category": held, "bytes": sum(held.values())}
    update = {"by_category": {**held, "temporary": 0.0}, "bytes": 0}
    return {
        "peaks": {"backward": peak, "update": update},
        "collectives": [],
        "flops": {"mm": step_flops(plan.job, 0)},
    }


def test_what_is_as_planned_is_not_named_and_adds_up_to_the_plans_peak(recipe, plan):
    judged = compare_role(roles_of(recipe)[0], found(plan), plan)
    assert judged.peak_bytes == pytest.approx(plan.memory.ranks[0].peak_bytes)
    named = {one.figure for one in judged.differences if one.is_named}
    assert {name for name in named if not name.endswith("sent_bytes")} == set()


def test_what_stays_and_is_off_is_named_with_both_numbers(recipe: Recipe, plan: Plan) -> None:
    judged = compare_role(roles_of(recipe)[0], found(plan, weights=30.0 * GIB), plan)
    (one,) = (one for one in judged.differences if one.figure == "weights_bytes")
    assert one.is_named
    assert (one.planned, one.found) == (plan.memory.ranks[0].states.weights, 30.0 * GIB)


def test_what_comes_and_goes_is_compared_as_one(recipe: Recipe, plan: Plan) -> None:
    memory = plan.memory.ranks[0]
    swapped = found(plan, activations=memory.casts, casts=memory.activations / 1.15)
    for seen, is_named in ((swapped, False), (found(plan, gradients=30.0 * GIB), True)):
        judged = compare_role(roles_of(recipe)[0], seen, plan)
        (one,) = (one for one in judged.differences if one.figure == "passing_bytes")
        assert one.is_named == is_named


def test_the_verdict_is_by_the_plans_margins(recipe: Recipe, plan: Plan) -> None:
    usable = plan.memory.usable_bytes
    without = compare_role(roles_of(recipe)[0], found(plan, gradients=0.0), plan).peak_bytes
    for part, verdict in ((0.89, "fits"), (0.95, "tight"), (1.01, "does_not_fit")):
        gradients = part * usable - without
        judged = compare_role(roles_of(recipe)[0], found(plan, gradients=gradients), plan)
        assert judged.verdict == verdict


def test_rings_send_all_but_a_part_and_sums_twice() -> None:
    sizes = {
        operation: sent_bytes(CollectiveKind("data", operation, "float32", 4), 100)
        for operation in ("all_reduce", "all_gather", "send", "receive")
    }
    assert sizes == {"all_reduce": 150.0, "all_gather": 75.0, "send": 100, "receive": 0.0}


def test_deepspeed_is_refused_with_the_way_out() -> None:
    words = ["recipe=gpt3b6", "cluster=smng_p2", "parallelism.engine=deepspeed"]
    with pytest.raises(RecipeError, match=r"cannot simulate its collectives\n.*engine=mesh"):
        rehearse_roles(compose_recipe(read_point(words)), lambda _: None)


def test_a_role_that_fails_is_named_with_its_last_words(monkeypatch):
    recipe = compose_recipe(read_point([*WORDS, "parallelism.pipeline=1"]))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RoleError, match=r"rank 0 \(.* ended with status 1"):
        rehearse_roles(recipe, lambda _: None)
