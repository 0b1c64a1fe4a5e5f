"""The table of a profiled step, against torch's own sums, counts and the planner's."""

import re
from collections import Counter

import pytest

from components.profiling.counts import count
from components.profiling.parts import (
    ATTENTION,
    EXPERT_PRODUCTS,
    GRADIENTS,
    LOSS,
    OPTIMIZER,
    PARTS,
    POINTWISE,
    PRODUCTS,
    REST,
    ROUTING,
    places_of,
)
from components.profiling.profile import profile_of, waits_of
from components.profiling.timeline import own_times, times_of, total_of
from tests.components.planner.jobs import hopper
from tests.components.profiling.conftest import DENSE, MIXTURE, MakeProfile

ALIKE = 1e-6  # relative: torch sums microseconds in floating point
PLANNED = (
    0.02  # the planner's count has norms in it, and rows of the vocabulary without padding
)


def flops_by_direction(made) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for event, place in places_of(made.trace).items():
        if place.counted is event:
            found[place.part, place.direction] += count(event)[0]
    return found


@pytest.mark.parametrize("words", [DENSE, MIXTURE])
def test_the_parts_add_up_to_the_step(profiled: MakeProfile, words: tuple[str, ...]) -> None:
    trace = profiled(words).trace
    places = places_of(trace)
    (step,) = [event for event in trace.main if event.is_step]
    assert sum(times_of(trace, places).values()) == total_of(trace, places)
    assert total_of(trace, places) == step.end - step.begin


def test_every_operator_has_the_time_that_torch_gives_it(profiled: MakeProfile) -> None:
    made = profiled(DENSE)
    found: Counter[str] = Counter()
    for event, begin, end in own_times(made.trace.main):
        found[event.name] += end - begin
    operators = {name for name in found if name.startswith("aten::")}
    assert len(operators) > 30
    for name in operators:
        assert found[name] / 1e3 == pytest.approx(made.own_times[name], rel=ALIKE, abs=0.1)


@pytest.mark.parametrize("words", [DENSE, MIXTURE])
def test_the_flops_are_those_of_torchs_counter(
    profiled: MakeProfile, words: tuple[str, ...]
) -> None:
    made = profiled(words)
    assert made.flops > 0
    assert sum(flops_by_direction(made).values()) == made.flops


def test_the_flops_are_those_of_the_plan(profiled: MakeProfile) -> None:
    made = profiled(DENSE)
    shape, length = made.recipe.shape, made.recipe.budget.sequence_length
    width = shape.attention.num_heads * shape.attention.head_dim
    planned_attention = 12 * shape.num_layers * width * length
    planned = made.recipe.derived.flops_per_token.full - planned_attention
    parts: Counter[str] = Counter()
    for (part, _), flops in flops_by_direction(made).items():
        parts[part] += flops
    assert parts[PRODUCTS] + parts[LOSS] == pytest.approx(planned * made.tokens, rel=PLANNED)
    # The kernel's backward pass computes the scores again: 14 for the plan's 12.
    assert parts[ATTENTION] * 12 == planned_attention * made.tokens * 14


def test_a_backward_pass_belongs_where_its_forward_pass_does(profiled: MakeProfile) -> None:
    made = profiled(DENSE)
    flops = flops_by_direction(made)
    assert flops[PRODUCTS, "backward"] == 2 * flops[PRODUCTS, "forward"] > 0
    assert flops[ATTENTION, "backward"] * 4 == 10 * flops[ATTENTION, "forward"]
    times = times_of(made.trace, places_of(made.trace))
    for part in (ATTENTION, PRODUCTS, POINTWISE, REST):
        assert times[part, "forward"] > 0
        assert times[part, "backward"] > 0, part
    assert times[OPTIMIZER, ""] > 0


def test_experts_have_their_own_products_and_their_routing(profiled: MakeProfile) -> None:
    made = profiled(MIXTURE)
    shape = made.recipe.shape
    assert shape.mlp.top_k
    assert shape.mlp.num_experts
    weights = 3 * shape.mlp.top_k * shape.mlp.ffn_dim * shape.dim
    weights += shape.dim * shape.mlp.num_experts  # the router's
    found = profile_of(made.trace, machine="none", dtype="float32")
    expected = 6 * weights * shape.num_layers * made.tokens
    assert found["products"][EXPERT_PRODUCTS]["flops"] == expected
    assert found["parts"][ROUTING]["forward_seconds"] > 0
    assert found["parts"][ROUTING]["backward_seconds"] > 0


def test_a_part_that_is_computed_again_says_so(profiled: MakeProfile) -> None:
    made = profiled(DENSE, recompute="full")
    places = places_of(made.trace)
    times = times_of(made.trace, places)
    assert times[PRODUCTS, "recomputed"] > 0
    assert sum(times.values()) == total_of(made.trace, places)
    flops = flops_by_direction(made)
    assert flops[ATTENTION, "recomputed"] == flops[ATTENTION, "forward"]


def test_a_roof_is_that_of_products_or_of_the_memory(profiled: MakeProfile) -> None:
    trace = profiled(DENSE).trace
    machine = hopper()
    found = profile_of(trace, machine=machine, dtype="bfloat16")
    assert list(found["parts"]) == list(PARTS)
    memory = machine.memory_gigabytes_per_second * 1e9
    for figures in found["products"].values():
        assert figures["flops_per_byte"] < 100  # matrices of 32 columns: the memory's roof
        limit = figures["flops_per_byte"] * memory
        assert figures["limit_flops_per_second"] == pytest.approx(limit)
        reached = figures["flops"] / figures["product_seconds"]
        assert figures["limit_fraction"] == pytest.approx(reached / limit)
    unknown = profile_of(trace, machine="none", dtype="bfloat16")
    assert unknown["machine"] is None
    assert "limit_fraction" not in unknown["products"][PRODUCTS]


@pytest.mark.long
def test_what_would_wait_for_a_device_is_listed_with_its_line(profiled: MakeProfile) -> None:
    plain, traced = (profiled(DENSE, stacks=stacks).trace for stacks in (False, True))
    assert (plain.frames == [], traced.frames == []) == (True, False)
    found = [
        [wait for wait in waits_of(trace, places_of(trace)) if wait["part"] == GRADIENTS]
        for trace in (plain, traced)
    ]
    for (wait,) in found:  # the loss of the step, once
        assert (wait["call"], wait["times"]) == ("aten::_local_scalar_dense", 1.0)
    assert found[0][0]["line"] == ""
    assert re.fullmatch(r"components/profiling/conftest\.py\(\d+\): _step", found[1][0]["line"])
