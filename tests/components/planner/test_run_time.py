"""A whole run: its parts by hand, and that every change moves them the right way."""

from dataclasses import replace

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.planner.cost import CostEstimate
from components.planner.passes import forward_seconds, rank_seconds
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.run_time import RunTimeline
from components.planner.time import evaluation_seconds
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

BLOOM = ("recipe=bloom176b", "cluster=jean_zay")
MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
SPEED = ours().speed


def planned(*words: str) -> Plan:
    return plan_recipe(compose_recipe(read_point(list(words))))


def range_of(plan: Plan) -> float:
    assert plan.accuracy is not None
    return plan.accuracy.p90_factor - 1


def billed(plan: Plan) -> CostEstimate:
    assert plan.cost_estimate is not None
    return plan.cost_estimate


def timeline_of(plan: Plan) -> RunTimeline:
    assert plan.run is not None
    return plan.run


def on_nodes(recipe: Recipe, **sections: dict[str, float]) -> Recipe:
    """Replace figures of the cluster's sections."""
    cluster = recipe.cluster
    update = {
        name: getattr(cluster, name).model_copy(update=figures)
        for name, figures in sections.items()
    }
    return recipe.model_copy(update={"cluster": cluster.model_copy(update=update)})


def test_the_parts_add_up_to_the_days_and_the_days_to_the_bill() -> None:
    bill = billed(planned(*BLOOM))
    parts = ("useful", "checkpoint", "evaluation", "failure", "chain")
    days = sum(getattr(bill, f"{part}_days") for part in parts)
    assert bill.days == pytest.approx(days)
    assert bill.device_hours == pytest.approx(days * 24 * 384)
    assert bill.energy_kwh == pytest.approx(days * 24 * 384 * 0.4)
    assert bill.waiting_days == 0.0


def test_bloom_s_run_by_hand() -> None:
    plan = planned(*BLOOM)
    bill, work = billed(plan), timeline_of(plan).work
    saving = work.saving
    # 365.4e9 tokens, every 419,430,400; the run ends between two of them.
    assert (work.num_steps, work.num_checkpoints, work.num_evaluations) == (95_000, 872, 89)
    assert saving.write == pytest.approx(40.0, abs=0.1)  # as published
    assert bill.start_up_seconds == pytest.approx(11 + 0.52 * 384)
    assert bill.failures.count is not None
    assert bill.failures.each_seconds is not None
    between = 8_064 * 3_600 / 48
    each = (
        work.total_seconds / 872 / 2
        + bill.start_up_seconds
        + saving.read
        + saving.write_and_hash_seconds
    )
    assert bill.failures.each_seconds == pytest.approx(each)
    interrupted = work.total_seconds + bill.failures.count * each
    assert bill.failures.count == pytest.approx(interrupted / between)
    assert bill.checkpoints.best_interval_seconds == pytest.approx(
        (2 * saving.stall_seconds * between) ** 0.5
    )
    assert saving.write_and_hash_seconds < (2 * saving.stall_seconds * between) ** 0.5


def test_checkpoints_faster_than_the_disk_wait_for_it() -> None:
    often, waits = (
        timeline_of(planned(*BLOOM, "checkpoint.every_tokens=4_194_304", *more))
        for more in ((), ("checkpoint.asynchronous=false",))
    )
    seldom = timeline_of(planned(*BLOOM)).work
    assert seldom.stall_seconds == seldom.saving.stall_seconds == seldom.saving.copy
    work = often.work
    useful = work.step_seconds + work.num_evaluations * work.evaluation_seconds
    slow = replace(
        work, saving=replace(work.saving, write=10 * work.saving.write_and_hash_seconds)
    )
    wait = slow.saving.write_and_hash_seconds - useful / work.num_checkpoints
    assert slow.stall_seconds == pytest.approx(work.saving.stall_seconds + wait)
    assert slow.checkpoint_interval == pytest.approx(
        slow.saving.write_and_hash_seconds + slow.saving.stall_seconds
    )
    assert waits.work.stall_seconds == waits.work.saving.write_and_hash_seconds
    best = [run.cost.checkpoints.best_interval_seconds for run in (often, waits)]
    assert best[0] is not None
    assert best[1] is not None
    assert best[0] < best[1]


def test_rarer_checkpoints_stall_less_and_lose_more() -> None:
    often, rarely = (
        timeline_of(planned(*BLOOM, f"checkpoint.every_tokens={tokens}"))
        for tokens in (419_430_400, 4_194_304_000)
    )
    assert rarely.work.num_checkpoints < often.work.num_checkpoints
    assert rarely.work.total_seconds < often.work.total_seconds
    lost = [run.cost.failures.each_seconds for run in (often, rarely)]
    assert lost[0] is not None
    assert lost[1] is not None
    assert lost[1] > lost[0]


def test_the_best_cadence_that_is_named_is_better_than_the_recipe_s() -> None:
    own = billed(planned(*BLOOM))
    best = own.checkpoints.best_every_tokens
    assert best is not None
    mended = billed(planned(*BLOOM, f"checkpoint.every_tokens={best}"))
    assert mended.days < own.days
    for factor in (0.5, 2.0):
        other = billed(planned(*BLOOM, f"checkpoint.every_tokens={round(best * factor)}"))
        assert mended.days < other.days


def test_faster_storage_takes_fewer_days_and_more_failures_more() -> None:
    recipe = compose_recipe(read_point([*BLOOM]))
    days = [
        billed(plan_recipe(on_nodes(recipe, storage=rates, failures=rarity))).days
        for rates, rarity in (
            ({"write_gigabytes_per_second": 600.0}, {"node_hours_between": 8_064.0}),
            ({"write_gigabytes_per_second": 60.0}, {"node_hours_between": 8_064.0}),
            ({"write_gigabytes_per_second": 6.0}, {"node_hours_between": 8_064.0}),
            ({"write_gigabytes_per_second": 6.0}, {"node_hours_between": 4_032.0}),
        )
    ]
    assert days == sorted(days)


def test_more_nodes_fail_more_often_in_a_day() -> None:
    few, many = (billed(planned(*BLOOM, f"parallelism.data={data}")) for data in (4, 8))
    assert few.failures.count is not None
    assert many.failures.count is not None
    assert many.failures.count / many.days > 1.9 * few.failures.count / few.days


def test_a_profile_without_failures_and_storage_goes_on_and_names_them() -> None:
    plan = planned("recipe=teuken7b", "cluster=juwels")
    assert billed(plan).failure_days is None
    assert billed(plan).checkpoints.write_seconds is None
    named = {item.path: item for item in plan.missing}
    assert "no failure is counted" in named["cluster.failures.node_hours_between"].problem
    assert "sacct" in named["cluster.failures.node_hours_between"].remedy
    assert "cluster.storage.write_gigabytes_per_second" in named


def test_figures_that_no_step_needs_leave_its_error_bar_alone() -> None:
    plan = planned("recipe=playbook1b", "cluster=hopper")
    unknown = {"storage", "failures", "electricity"}
    assert {item.path.split(".")[1] for item in plan.missing} == unknown
    assert plan.error_fraction == range_of(plan)
    bloom = planned(*BLOOM)
    assert bloom.error_fraction == 2 * range_of(bloom)


def test_a_run_that_loses_more_than_it_does_is_told_so() -> None:
    recipe = compose_recipe(read_point([*BLOOM, "checkpoint.every_tokens=365367754752"]))
    plan = plan_recipe(recipe)
    told = {item.path: item for item in plan.missing}["checkpoint.every_tokens"]
    assert "a failure comes every 168 h and costs longer than that" in told.problem
    best = billed(plan).checkpoints.best_every_tokens
    assert f"checkpoint.every_tokens={best}" in told.remedy
    assert billed(plan).failure_days is None


def test_jobs_that_are_over_before_they_begin_are_named() -> None:
    recipe = compose_recipe(read_point([*BLOOM]))
    queue, *_ = recipe.cluster.queues
    short = queue.model_copy(update={"longest_hours": 0.05})  # the start alone takes longer
    cluster = recipe.cluster.model_copy(update={"queues": (short,)})
    plan = plan_recipe(recipe.model_copy(update={"cluster": cluster}))
    assert "cluster.queues" in {item.path for item in plan.missing}
    bill = billed(plan)
    assert (bill.jobs, bill.chain_days, bill.queue) == (None, None, None)


def test_a_user_s_waiting_comes_before_each_job_and_each_restart() -> None:
    bill = billed(planned(*BLOOM, "cluster.waiting_hours=12"))
    assert bill.jobs is not None
    assert bill.failures.count is not None
    assert bill.waiting_days == pytest.approx((bill.jobs + bill.failures.count) / 2)
    assert bill.days == billed(planned(*BLOOM)).days


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


def test_more_windows_and_sources_never_take_less() -> None:
    one = job(MIDDLE, layout(data=4))
    times = [
        evaluation_seconds(one, hopper(), SPEED, sources=sources, windows_per_source=windows)
        for sources, windows in ((1, 1), (1, 64), (2, 64), (2, 65))
    ]
    assert times == sorted(times)
