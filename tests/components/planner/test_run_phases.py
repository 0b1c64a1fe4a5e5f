"""The plan of a run with phases: a step, a memory and hours for each, and their sum."""

from functools import cache
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.planner.interruptions import HOUR
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.report.plan_tables import phases_sheet

HALF = 3_000_000_000_000 // 4_194_304 * 4_194_304  # whole steps
LONG: dict[str, Any] = {
    "from_tokens": HALF,
    "budget": {"sequence_length": 65_536},
    "parallelism": {"context": 8},
}


@cache
def base() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=full", "cluster=juwels"]))


def planned(**phases: dict[str, Any]) -> Plan:
    return plan_recipe(check_recipe({**base().model_dump(mode="json"), "phases": phases}))


def test_a_phase_that_changes_nothing_costs_what_its_steps_cost_before() -> None:
    plain, cut = planned(), planned(same={"from_tokens": HALF})
    assert plain.cost_estimate is not None
    assert cut.cost_estimate is not None
    assert plain.run is not None
    assert cut.run is not None
    assert cut.cost_estimate.steps == plain.cost_estimate.steps
    assert cut.cost_estimate.useful_days == pytest.approx(plain.cost_estimate.useful_days)
    assert cut.run.work.evaluation_seconds == pytest.approx(plain.run.work.evaluation_seconds)
    # It begins with a job of its own, and the checkpoint before it is due at the border.
    assert plain.cost_estimate.jobs is not None
    assert cut.cost_estimate.jobs is not None
    assert 0 <= cut.cost_estimate.jobs - plain.cost_estimate.jobs <= 1
    assert 0 <= cut.cost_estimate.checkpoints.count - plain.cost_estimate.checkpoints.count <= 1
    assert plain.planned_phases == ()
    assert phases_sheet(plain.planned_phases).rows == []
    assert "phases" not in plain.as_json()


def test_each_phase_has_the_step_of_a_run_of_its_own_and_all_add_up() -> None:
    plan = planned(long=LONG)
    recipe = plan.steps[1].recipe.whole_run
    alone = base().model_dump(mode="json")
    alone["budget"]["sequence_length"] = 65_536
    alone["parallelism"] |= {"context": 8, "data": 16, "data_shard": 16}
    other = plan_recipe(check_recipe(alone))
    assert plan.steps[1].time == other.time
    assert plan.steps[1].memory == other.memory
    assert plan.largest_memory.fullest_rank_bytes == max(
        plan.memory.fullest_rank_bytes, other.memory.fullest_rank_bytes
    )
    first, long = plan.planned_phases
    assert (first.name, long.name) == ("", "long")
    assert long.tokens_per_step == first.tokens_per_step == 4_194_304
    degrees = {"data": 16, "tensor": 2, "pipeline": 2, "expert": 1, "context": 8}
    assert long.model_dump()["layout"] == degrees
    assert other.time is not None
    assert long.device_hours == pytest.approx(
        long.steps * other.time.total_seconds / HOUR * 512
    )
    assert plan.cost_estimate is not None
    total = plan.cost_estimate.useful_days * 24 * 512
    assert (first.device_hours or 0) + (long.device_hours or 0) == pytest.approx(total)
    assert first.tokens + long.tokens == recipe.token_clock.tokens_after(
        recipe.derived_numbers.steps
    )
    rows = phases_sheet((first, long)).rows
    assert [row[0] for row in rows] == ["first", "long", "all"]
    assert rows[1][5] == "d16 t2 p2 c8"


def test_a_machine_whose_steps_nobody_can_predict_still_has_the_memory_of_each_phase() -> None:
    tree = base().model_dump(mode="json")
    tree["cluster"]["hardware"]["across"] |= {
        "by_nodes": [],
        "peak_gigabytes_per_second": None,
    }
    plan = plan_recipe(check_recipe({**tree, "phases": {"long": LONG}}))
    assert plan.time is None
    assert [one.time for one in plan.steps] == [None, None]
    first, long = plan.planned_phases
    assert first.device_hours is long.device_hours is None
    assert long.peak_bytes == round(plan.steps[1].memory.fullest_rank_bytes)
    assert phases_sheet((first, long)).rows[-1][-1] == ""
