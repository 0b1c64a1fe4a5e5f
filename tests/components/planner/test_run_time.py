"""A whole run: its steps, phases and parts by hand, and which way changes move them."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.planner.cost import CostEstimate
from components.planner.interruptions import HOUR
from components.planner.job import job_from_recipe
from components.planner.passes import forward_seconds, rank_seconds
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.run_time import (
    RunTimeline,
    Stretch,
    count_crossings,
    split_by_batch,
    steps_seconds,
)
from components.planner.time import evaluation_seconds, plan_time
from components.report.plan_tables import phases_sheet
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values
from tests.recipes.compositions import compose, composed

BLOOM = ("bloom176b", "cluster=jean_zay")
MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
SPEED = ours().speed
HALF = 3_000_000_000_000 // 4_194_304 * 4_194_304  # whole steps
LONG: dict[str, Any] = {
    "from_tokens": HALF,
    "budget": {"sequence_length": 65_536},
    "parallelism": {"context": 8},
}


@cache
def planned(*words: str) -> Plan:
    return plan_recipe(compose(*words))


def bloom(*words: str) -> Plan:
    return planned(*BLOOM, *words)


def billed(plan: Plan) -> CostEstimate:
    assert plan.cost_estimate is not None
    return plan.cost_estimate


def timeline_of(plan: Plan) -> RunTimeline:
    assert plan.run is not None
    return plan.run


def hardware_of(recipe: Recipe) -> Hardware:
    assert isinstance(recipe.cluster.hardware, Hardware)
    return recipe.cluster.hardware


def is_due_steps(steps: list[int], every_tokens: int) -> int:
    """Take one step after the other and ask as ``Pretraining.is_due`` does."""
    tokens = count = 0
    for number, step in enumerate(steps, start=1):
        before, tokens = tokens, tokens + step
        crossed = tokens // every_tokens > before // every_tokens
        count += crossed or number == len(steps)
    return count


@given(
    batches=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=5),
    every_tokens=st.integers(1, 500),
)
def test_checkpoints_and_evaluations_are_counted_as_in_the_run(batches, every_tokens):
    run, tokens = [], 0
    for steps, size in batches:
        run.append(Stretch(steps=steps, tokens_before=tokens, tokens_per_step=size))
        tokens = run[-1].tokens_after
    taken = [size for steps, size in batches for _ in range(steps)]
    assert count_crossings(tuple(run), every_tokens) == is_due_steps(taken, every_tokens)


@pytest.mark.parametrize("name", ["bloom176b", "bloom1b1", "teuken7b"])
def test_stretches_are_the_recipe_s_steps_and_tokens(name: str) -> None:
    recipe = composed(name, "full")
    run = list(split_by_batch(recipe))
    steps, length = recipe.derived_numbers.steps, recipe.budget.sequence_length
    assert sum(stretch.steps for stretch in run) == steps
    assert all(one.tokens_after == following.tokens_before for one, following in pairwise(run))
    assert run[-1].tokens_after == recipe.batch_ramp.consumed_after(steps) * length


def test_a_run_that_ends_in_its_ramp_has_only_its_steps() -> None:
    recipe = compose(*BLOOM, "budget.total_tokens=5000000000")
    run = list(split_by_batch(recipe))
    assert sum(stretch.steps for stretch in run) == recipe.derived_numbers.steps
    assert run[-1].tokens_per_step < recipe.budget.global_batch_tokens


def test_blooms_ramp_ends_as_in_its_log() -> None:
    """After step 12,695 it had seen 20,155,564,032 tokens (BLOOM's chronicles)."""
    *ramp, full = split_by_batch(compose(*BLOOM))
    assert full.tokens_per_step == 2_048 * 2_048
    steps = sum(stretch.steps for stretch in ramp)
    assert full.tokens_before + (12_695 - steps) * full.tokens_per_step == 20_155_564_032
    assert [stretch.tokens_per_step // 2_048 for stretch in ramp] == list(range(192, 2_048, 16))


def test_each_batch_is_priced_with_its_own_microbatches() -> None:
    """Half of 128 microbatches in the first 100 steps, all of them in the other 100."""
    ramp = {"start": 2_097_152, "increment": 2_097_152, "over": 209_715_200}
    words = [f"budget.ramp_up.{name}_tokens={tokens}" for name, tokens in ramp.items()]
    recipe = compose(*BLOOM, *words, "budget.total_tokens=629145600")
    run, job = tuple(split_by_batch(recipe)), job_from_recipe(recipe)
    hardware = hardware_of(recipe)
    sizes = [(one.steps, one.tokens_per_step // 2_048) for one in run]
    assert sizes == [(100, 1_024), (100, 2_048)]
    full = plan_time(job, hardware, SPEED)
    # A pipeline's fill is as long, and so is what follows the last microbatch.
    half = full.total_seconds - full.microbatches / 2
    seconds = steps_seconds(run, job, full, hardware, SPEED)
    assert seconds == pytest.approx(100 * full.total_seconds + 100 * half)


def test_a_ramp_up_takes_more_steps_and_longer() -> None:
    recipes = compose(*BLOOM), compose(*BLOOM, "budget.ramp_up=none")
    job, hardware = job_from_recipe(recipes[1]), hardware_of(recipes[1])
    full = plan_time(job, hardware, SPEED)
    more, fewer = (recipe.derived_numbers.steps for recipe in recipes)
    slow, quick = (
        steps_seconds(tuple(split_by_batch(recipe)), job, full, hardware, SPEED)
        for recipe in recipes
    )
    assert quick == pytest.approx(fewer * full.total_seconds)
    assert 1.0 < slow / quick < more / fewer


def test_the_parts_add_up_to_the_days_and_the_days_to_the_bill() -> None:
    bill = billed(bloom())
    parts = ("useful", "checkpoint", "evaluation", "failure", "chain")
    days = sum(getattr(bill, f"{part}_days") for part in parts)
    assert bill.days == pytest.approx(days)
    assert bill.device_hours == pytest.approx(days * 24 * 384)
    assert bill.energy_kwh == pytest.approx(days * 24 * 384 * 0.4)
    assert bill.waiting_days == 0.0


def test_bloom_s_run_by_hand() -> None:
    bill, work = billed(bloom()), timeline_of(bloom()).work
    saving = work.saving
    # 365.4e9 tokens, every 419,430,400; the run ends between two of them.
    assert (work.num_steps, work.num_checkpoints, work.num_evaluations) == (95_000, 872, 89)
    assert saving.write == pytest.approx(40.0, abs=0.1)  # as published
    assert bill.start_up_seconds == pytest.approx(11 + 0.52 * 384)
    assert bill.failures.count is not None
    between = 8_064 * 3_600 / 48
    each = work.total_seconds / 872 / 2 + bill.start_up_seconds + saving.read
    each += saving.write_and_hash_seconds
    assert bill.failures.each_seconds == pytest.approx(each)
    interrupted = work.total_seconds + bill.failures.count * each
    assert bill.failures.count == pytest.approx(interrupted / between)
    best = (2 * saving.stall_seconds * between) ** 0.5
    assert bill.checkpoints.best_interval_seconds == pytest.approx(best)
    assert saving.write_and_hash_seconds < best


def test_checkpoints_faster_than_the_disk_wait_for_it() -> None:
    words = "checkpoint.every_tokens=4_194_304"
    often = timeline_of(bloom(words))
    waits = timeline_of(bloom(words, "checkpoint.asynchronous=false"))
    seldom = timeline_of(bloom()).work
    assert seldom.stall_seconds == seldom.saving.stall_seconds == seldom.saving.copy
    work = often.work
    useful = work.step_seconds + work.num_evaluations * work.evaluation_seconds
    slower = replace(work.saving, write=10 * work.saving.write_and_hash_seconds)
    slow = replace(work, saving=slower)
    wait = slower.write_and_hash_seconds - useful / work.num_checkpoints
    assert slow.stall_seconds == pytest.approx(work.saving.stall_seconds + wait)
    interval = slower.write_and_hash_seconds + slower.stall_seconds
    assert slow.checkpoint_interval == pytest.approx(interval)
    assert waits.work.stall_seconds == waits.work.saving.write_and_hash_seconds
    best = [run.cost.checkpoints.best_interval_seconds or 0.0 for run in (often, waits)]
    assert 0 < best[0] < best[1]


def test_the_best_checkpoint_interval_is_better_than_others() -> None:
    best = billed(bloom()).checkpoints.best_every_tokens
    assert best is not None
    days = [
        billed(bloom(f"checkpoint.every_tokens={round(best * factor)}")).days
        for factor in (0.5, 1.0, 2.0)
    ]
    assert days[1] < min(days[0], days[2], billed(bloom()).days)


def test_a_profile_without_failures_and_storage_names_them() -> None:
    plan = planned("teuken7b", "cluster=juwels")
    assert billed(plan).failure_days is None
    assert billed(plan).checkpoints.write_seconds is None
    named = {item.path: item for item in plan.missing}
    assert "no failure is counted" in named["cluster.failures.node_hours_between"].problem
    assert "sacct" in named["cluster.failures.node_hours_between"].remedy
    assert "cluster.storage.write_gigabytes_per_second" in named


def test_figures_outside_a_step_do_not_widen_its_range() -> None:
    plan = planned("playbook1b", "cluster=hopper")
    unknown = {"storage", "failures", "electricity"}
    assert {item.path.split(".")[1] for item in plan.missing} == unknown
    for one, factor in ((plan, 1), (bloom(), 2)):
        assert one.accuracy is not None
        assert one.error_fraction == factor * (one.accuracy.p90_factor - 1)


def test_a_run_that_loses_more_than_it_gains_has_a_message() -> None:
    plan = bloom("checkpoint.every_tokens=365367754752")
    told = {item.path: item for item in plan.missing}["checkpoint.every_tokens"]
    assert "a failure comes every 168 h and costs longer than that" in told.problem
    best = billed(plan).checkpoints.best_every_tokens
    assert f"checkpoint.every_tokens={best}" in told.remedy
    assert billed(plan).failure_days is None


def test_jobs_shorter_than_their_start_are_named() -> None:
    recipe = compose(*BLOOM)
    short = with_values(recipe.cluster.queues[0], longest_hours=0.05)  # the start takes longer
    plan = plan_recipe(with_values(recipe, cluster={"queues": (short,)}))
    assert "cluster.queues" in {item.path for item in plan.missing}
    bill = billed(plan)
    assert (bill.jobs, bill.chain_days, bill.queue) == (None, None, None)


def test_waiting_precedes_each_job_and_each_restart() -> None:
    bill = billed(bloom("cluster.waiting_hours=12"))
    assert bill.jobs is not None
    assert bill.failures.count is not None
    assert bill.waiting_days == pytest.approx((bill.jobs + bill.failures.count) / 2)
    assert bill.days == billed(bloom()).days


def test_a_forward_pass_is_about_a_third_of_a_training_one() -> None:
    for where in (layout(), layout(tensor=8), layout(pipeline=4), layout(context=8)):
        one = job(MIDDLE, where)
        forward = forward_seconds(one, 0, hopper(), SPEED)
        assert forward / rank_seconds(one, 0, hopper(), SPEED) == pytest.approx(1 / 3, abs=0.1)


def test_data_ranks_take_turns_at_each_source() -> None:
    """64 windows in batches of 2 are 32; 8 data ranks take them in 4 turns, of 3 sources."""
    one = job(MIDDLE, layout(data=8), microbatch_sequences=2)
    seconds = evaluation_seconds(one, hopper(), SPEED, sources=3, windows_per_source=64)
    assert seconds == pytest.approx(3 * 4 * forward_seconds(one, 0, hopper(), SPEED))


def test_a_pipeline_s_turns_overlap_unless_a_rank_has_several_stages() -> None:
    def ratio(stages_per_rank: int, schedule: str) -> float:
        where = layout(pipeline=4, stages_per_rank=stages_per_rank, schedule=schedule)
        one = job(MIDDLE, where)
        stages = sum(forward_seconds(one, rank, hopper(), SPEED) for rank in range(4))
        total = evaluation_seconds(one, hopper(), SPEED, sources=1, windows_per_source=64)
        return total / stages

    assert 17 < ratio(1, "1f1b") < 24  # 1 + 63 / 4, longer by the stage with the head
    assert ratio(2, "interleaved") == pytest.approx(64)


def base() -> Recipe:
    return compose("teuken7b", "scale=full", "cluster=juwels")


def in_phases(**phases: dict[str, Any]) -> Plan:
    return plan_recipe(check_recipe({**base().model_dump(mode="json"), "phases": phases}))


def test_an_unchanged_phase_has_the_cost_of_its_steps() -> None:
    plain, cut = in_phases(), in_phases(same={"from_tokens": HALF})
    before, after = billed(plain), billed(cut)
    assert after.steps == before.steps
    assert after.useful_days == pytest.approx(before.useful_days)
    evaluations = [timeline_of(plan).work.evaluation_seconds for plan in (plain, cut)]
    assert evaluations[1] == pytest.approx(evaluations[0])
    # It begins with a job of its own, and the checkpoint before it is due at the border.
    assert before.jobs is not None
    assert after.jobs is not None
    assert 0 <= after.jobs - before.jobs <= 1
    assert 0 <= after.checkpoints.count - before.checkpoints.count <= 1
    assert phases_sheet(plain.planned_phases).rows == []
    assert "phases" not in plain.as_json()


def test_each_phase_has_the_step_of_a_separate_run() -> None:
    plan = in_phases(long=LONG)
    recipe = plan.steps[1].recipe.whole_run
    alone = base().model_dump(mode="json")
    alone["budget"]["sequence_length"] = 65_536
    alone["parallelism"] |= {"context": 8, "data": 16, "data_shard": 16}
    other = plan_recipe(check_recipe(alone))
    assert plan.steps[1].time == other.time
    assert plan.steps[1].memory == other.memory
    largest = max(plan.memory.fullest_rank_bytes, other.memory.fullest_rank_bytes)
    assert plan.largest_memory.fullest_rank_bytes == largest
    first, long = plan.planned_phases
    assert (first.name, long.name) == ("", "long")
    assert long.tokens_per_step == first.tokens_per_step == 4_194_304
    degrees = {"data": 16, "tensor": 2, "pipeline": 2, "expert": 1, "context": 8}
    assert long.model_dump()["layout"] == degrees
    assert other.time is not None
    hours = long.steps * other.time.total_seconds / HOUR * 512
    assert long.device_hours == pytest.approx(hours)
    total = billed(plan).useful_days * 24 * 512
    assert (first.device_hours or 0) + hours == pytest.approx(total)
    end = recipe.token_clock.tokens_after(recipe.derived_numbers.steps)
    assert first.tokens + long.tokens == end
    rows = phases_sheet((first, long)).rows
    assert [row[0] for row in rows] == ["first", "long", "all"]
    assert rows[1][5] == "d16 t2 p2 c8"


def test_without_a_step_time_phases_still_have_memory() -> None:
    tree = base().model_dump(mode="json")
    unknown: dict[str, Any] = {"by_nodes": [], "peak_gigabytes_per_second": None}
    tree["cluster"]["hardware"]["across"] |= unknown
    plan = plan_recipe(check_recipe({**tree, "phases": {"long": LONG}}))
    assert [one.time for one in plan.steps] == [plan.time, None] == [None, None]
    first, long = plan.planned_phases
    assert first.device_hours is long.device_hours is None
    assert long.peak_bytes == round(plan.steps[1].memory.fullest_rank_bytes)
    assert phases_sheet((first, long)).rows[-1][-1] == ""
