"""Steps of a ramp-up and cadences, against the run's own rules taken step by step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.planner.job import job_from_recipe
from components.planner.run_time import Stretch, count_crossings, split_by_batch, steps_seconds
from components.planner.time import plan_time
from tests.components.planner.jobs import ours

SPEED = ours().speed


def compose(*words: str) -> Recipe:
    return compose_recipe(read_point(list(words)))


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
def test_cadences_are_crossed_as_often_as_the_run_says(
    batches: list[tuple[int, int]], every_tokens: int
) -> None:
    run, tokens = [], 0
    for steps, size in batches:
        run.append(Stretch(steps=steps, tokens_before=tokens, tokens_per_step=size))
        tokens = run[-1].tokens_after
    taken = [size for steps, size in batches for _ in range(steps)]
    assert count_crossings(tuple(run), every_tokens) == is_due_steps(taken, every_tokens)


@pytest.mark.parametrize("name", ["bloom176b", "bloom7b1", "bloom1b7", "bloom1b1", "teuken7b"])
def test_stretches_are_the_recipe_s_steps_and_tokens(name: str) -> None:
    recipe = compose(f"recipe={name}", "scale=full")
    run = list(split_by_batch(recipe))
    assert sum(stretch.steps for stretch in run) == recipe.derived_numbers.steps
    for one, following in pairwise(run):
        assert one.tokens_after == following.tokens_before
    length = recipe.budget.sequence_length
    assert (
        run[-1].tokens_after
        == recipe.batch_ramp.consumed_after(recipe.derived_numbers.steps) * length
    )


def test_a_run_that_ends_on_its_ramp_has_only_the_steps_it_takes() -> None:
    recipe = compose("recipe=bloom176b", "cluster=jean_zay", "budget.total_tokens=5000000000")
    run = list(split_by_batch(recipe))
    assert sum(stretch.steps for stretch in run) == recipe.derived_numbers.steps
    assert run[-1].tokens_per_step < recipe.budget.global_batch_tokens


def test_bloom_s_ramp_ends_where_its_log_says() -> None:
    """After step 12,695 it had seen 20,155,564,032 tokens (BLOOM's chronicles)."""
    run = list(split_by_batch(compose("recipe=bloom176b", "cluster=jean_zay")))
    ramp, full = run[:-1], run[-1]
    assert full.tokens_per_step == 2_048 * 2_048
    steps = sum(stretch.steps for stretch in ramp)
    assert full.tokens_before + (12_695 - steps) * full.tokens_per_step == 20_155_564_032
    assert [stretch.tokens_per_step // 2_048 for stretch in ramp] == list(range(192, 2_048, 16))


def test_each_batch_is_priced_with_its_own_microbatches() -> None:
    """Half of 128 microbatches in the first 100 steps, all of them in the other 100."""
    recipe = compose(
        *("recipe=bloom176b", "cluster=jean_zay", "budget.ramp_up.start_tokens=2097152"),
        *("budget.ramp_up.increment_tokens=2097152", "budget.ramp_up.over_tokens=209715200"),
        "budget.total_tokens=629145600",
    )
    run, job, hardware = (
        tuple(split_by_batch(recipe)),
        job_from_recipe(recipe),
        hardware_of(recipe),
    )
    assert [(one.steps, one.tokens_per_step // 2_048) for one in run] == [
        (100, 1_024),
        (100, 2_048),
    ]
    full = plan_time(job, hardware, SPEED)
    # A pipeline's fill is as long, and so is what follows the last microbatch.
    half = full.total_seconds - full.microbatches / 2
    seconds = steps_seconds(run, job, full, hardware, SPEED)
    assert seconds == pytest.approx(100 * full.total_seconds + 100 * half)


def test_a_ramp_up_takes_more_steps_and_longer() -> None:
    with_ramp = compose("recipe=bloom176b", "cluster=jean_zay")
    without = compose("recipe=bloom176b", "cluster=jean_zay", "budget.ramp_up=none")
    job, hardware = job_from_recipe(without), hardware_of(without)
    full = plan_time(job, hardware, SPEED)
    assert with_ramp.derived_numbers.steps > without.derived_numbers.steps
    slow, quick = (
        steps_seconds(tuple(split_by_batch(recipe)), job, full, hardware, SPEED)
        for recipe in (with_ramp, without)
    )
    assert quick == pytest.approx(without.derived_numbers.steps * full.total_seconds)
    assert 1.0 < slow / quick < with_ramp.derived_numbers.steps / without.derived_numbers.steps
