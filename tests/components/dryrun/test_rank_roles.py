"""Roles that represent all ranks, and their comparison with the plan."""

import pytest

from components.dryrun.rank_roles import (
    RoleError,
    RoleResult,
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
from tests.recipes.compositions import compose

SEVERAL = "parallelism.stages_per_rank=2"
EVEN = "parallelism.stage_balance=layers"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Layers, whether it is first and last, its pipeline rank, and the ranks it represents.
        (
            (),
            [
                ((5,), True, False, 0, 32),
                ((6,), False, False, 1, 320),
                ((5,), False, True, 11, 32),
            ],
        ),
        (
            ("parallelism.schedule=zbv", SEVERAL, "model.num_layers=72", EVEN),
            [((3, 3), True, True, 0, 32), ((3, 3), False, False, 11, 352)],
        ),
    ],
    ids=["equal stages are one role", "both ends of a V are on the first"],
)
def test_roles_stand_for_every_rank(words, expected):
    recipe = compose("bloom176b", "cluster=jean_zay", *words)
    roles = roles_of(recipe)
    assert [
        (role.layers, role.first, role.last, role.pipeline_rank, role.stands_for)
        for role in roles
    ] == expected
    for role in roles:
        places = recipe.rank_groups.find_coordinates(role.rank)
        assert places.pop("pipeline") == role.pipeline_rank
        assert set(places.values()) == {0}


def test_a_stage_with_different_layers_is_another_role() -> None:
    roles = roles_of(compose("bloom176b", "cluster=jean_zay", "model.num_layers=73", EVEN))
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
def test_enough_microbatches_are_rehearsed_to_reach_the_peak(words, rehearsed):
    recipe = compose("playbook80b", "cluster=hopper", *words)
    assert microbatches_to_rehearse(recipe) == rehearsed


LARGE = 30.0 * 2**30


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_recipe(compose("playbook80b", "cluster=hopper"))


def judge(plan: Plan, **changed: float) -> RoleResult:
    """Compare the plan of the first rank with itself as a dry run, except for changes."""
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
    peaks, flops = {"backward": peak, "update": update}, {"mm": step_flops(plan.job, 0)}
    found = {"peaks": peaks, "collectives": [], "flops": flops}
    return compare_role(roles_of(compose("playbook80b", "cluster=hopper"))[0], found, plan)


def test_a_role_that_equals_its_plan_has_no_differences(plan: Plan) -> None:
    judged = judge(plan)
    assert judged.peak_bytes == pytest.approx(plan.memory.ranks[0].peak_bytes)
    named = {difference.figure for difference in judged.differences if difference.is_named}
    assert {name for name in named if not name.endswith("sent_bytes")} == set()


def test_persistent_memory_is_compared_by_part_and_temporary_memory_as_a_sum(plan):
    memory = plan.memory.ranks[0]
    swapped = {"activations": memory.casts, "casts": memory.activations / 1.15}
    for changed, figure, is_named in (
        ({"weights": LARGE}, "weights_bytes", True),
        (swapped, "passing_bytes", False),
        ({"gradients": LARGE}, "passing_bytes", True),
    ):
        (difference,) = (
            difference
            for difference in judge(plan, **changed).differences
            if difference.figure == figure
        )
        assert difference.is_named == is_named
        if figure == "weights_bytes":
            assert (difference.planned, difference.found) == (memory.states.weights, LARGE)


def test_the_verdict_uses_the_margins_of_the_plan(plan: Plan) -> None:
    without = judge(plan, gradients=0.0).peak_bytes
    for part, verdict in ((0.89, "fits"), (0.95, "tight"), (1.01, "does_not_fit")):
        gradients = part * plan.memory.usable_bytes - without
        assert judge(plan, gradients=gradients).verdict == verdict


def test_ring_collectives_send_the_expected_bytes() -> None:
    sizes = {
        operation: sent_bytes(CollectiveKind("data", operation, "float32", 4), 100)
        for operation in ("all_reduce", "all_gather", "send", "receive")
    }
    assert sizes == {"all_reduce": 150.0, "all_gather": 75.0, "send": 100, "receive": 0.0}


def test_deepspeed_is_refused_with_a_remedy() -> None:
    recipe = compose("gpt3b6", "cluster=smng_p2", "parallelism.engine=deepspeed")
    with pytest.raises(RecipeError, match=r"cannot simulate its collectives\n.*engine=mesh"):
        rehearse_roles(recipe, lambda _: None)


def test_a_failed_role_is_named_with_its_error(monkeypatch):
    recipe = compose("playbook80b", "cluster=hopper", "parallelism.pipeline=1")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RoleError, match=r"rank 0 \(.* ended with status 1"):
        rehearse_roles(recipe, lambda _: None)
