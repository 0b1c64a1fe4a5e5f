"""The least recomputation that fits: what is asked, what is chosen, what it costs."""

import pytest

from components.config.recipe import Recipe
from components.config.resolve import update_recipe
from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner.activations import layer_bytes_per_token
from components.planner.job import job_from_recipe
from components.planner.memory import plan_memory
from components.planner.passes import layer_parts, recompute_fraction
from components.planner.plan import plan_recipe
from components.planner.rates import price_recompute
from components.planner.recompute import NOTHING, Choice, least_that_fits, list_choices
from components.planner.search import penalise_tight
from components.planner.time import StepPlan, plan_time
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values
from tests.recipes.compositions import compose

GPT = gpt(dim=4_096, num_layers=24, num_heads=32)
TEUKEN = (
    *("teuken7b", "parallelism.tensor=1", "parallelism.pipeline=1"),
    "parallelism.sequence_parallel=false",
)
WHOLE = (*TEUKEN, "cluster=h200")


@pytest.mark.parametrize("usable", [200.0, 165.0, 155.0, 145.0, 138.0, 134.5])
def test_the_fastest_fitting_recomputation_is_chosen(usable):
    less = {"hardware": {"usable_bytes": round(usable * 2**30)}}
    recipe = with_values(compose(*WHOLE), cluster=less)
    hardware, one, software = recipe.cluster.hardware, job_from_recipe(recipe), ours()
    assert isinstance(hardware, Hardware)

    def cost(choice: Choice) -> float:
        memory = plan_memory(choice.apply_to(one), hardware, software.memory)
        if not memory.is_within_limit:
            return float("inf")
        total = plan_time(choice.apply_to(one), hardware, software.speed).total_seconds
        return penalise_tight(total, memory.memory_verdict)

    found = least_that_fits(recipe)
    assert cost(found) == min(map(cost, list_choices(one)))
    assert cost(found) < float("inf")
    if usable == 200.0:
        assert found == NOTHING
    if usable == 134.5:
        assert found.recompute == "full"


def test_the_value_of_auto_is_in_the_recipe_and_stays_on_resume() -> None:
    # Weights and sums of 2 bytes each.
    recipe = compose(*WHOLE, "parallelism.recompute=auto", "precision.accumulate=bfloat16")
    assert recipe.parallelism.recompute == "selective"
    again = Recipe.model_validate(recipe.model_dump(mode="json"))
    assert again.parallelism == recipe.parallelism
    moved = update_recipe(recipe, {"parallelism.tensor": 2})
    assert moved.parallelism.recompute == "selective"
    assert moved.parallelism.recompute_every == recipe.parallelism.recompute_every
    with pytest.raises(RecipeError, match="auto was resolved when the run started"):
        update_recipe(recipe, {"parallelism.recompute": "auto"})


def test_a_searched_layout_resolves_auto_recomputation() -> None:
    words = ["teuken7b", "cluster=hopper", "parallelism=auto", "cluster.nodes=8"]
    words += ["parallelism.pipeline=1", "parallelism.tensor=1"]
    assert compose(*words, "parallelism.recompute=auto") == compose(*words)


def test_a_miniature_does_not_recompute() -> None:
    recipe = compose("teuken7b", "scale=mini", "parallelism.recompute=auto")
    assert recipe.parallelism.recompute == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*TEUKEN, "cluster=hopper", "parallelism.zero=0"),
            r"parallelism.recompute: auto: whatever is recomputed, a device needs 132\.\d GiB "
            r"of 69\.8\n  share more \(parallelism=auto finds a layout\), or see the plan of "
            r"parallelism.recompute=full",
        ),
        (
            (*TEUKEN, "cluster=local", "scale=full"),
            r"parallelism.recompute: auto, but cluster 'local' has no measured hardware "
            r"profile\n  set parallelism.recompute=none",
        ),
    ],
    ids=["nothing fits", "nobody knows"],
)
def test_auto_without_a_fitting_value_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        compose(*words, "parallelism.recompute=auto")


def test_without_a_time_the_first_fitting_value_is_chosen() -> None:
    recipe = with_values(compose(*WHOLE), cluster={"hardware": {"gemm_teraflops": {}}})
    blind = recipe.cluster.hardware
    assert isinstance(blind, Hardware)
    found = least_that_fits(recipe)
    chosen = found.apply_to(job_from_recipe(recipe))
    memory = plan_memory(chosen, blind, ours().memory)
    assert found.recompute == "full"
    assert memory.memory_verdict == "tight"  # of all choices the smallest
    step = StepPlan(recipe=recipe, job=chosen, memory=memory)
    price = price_recompute(step, blind, ours())
    assert price is not None
    assert price.extra_seconds is None


def test_zero_bubble_does_not_recompute() -> None:
    where = layout(pipeline=2, schedule="zero_bubble", stages_per_rank=2, num_layers=24)
    assert list(list_choices(job(GPT, where))) == [NOTHING]


@pytest.mark.parametrize(
    ("pipeline", "stages", "every"), [(1, 1, 1), (4, 1, 1), (4, 1, 5), (3, 2, 4), (2, 3, 7)]
)
def test_every_nth_layer_is_recomputed_on_each_rank(pipeline, stages, every):
    where = layout(
        pipeline=pipeline, stages_per_rank=stages, num_layers=24, recompute_every=every
    )
    size = 24 // (pipeline * stages)
    for rank in range(pipeline):
        held = [layer for layer in range(24) if layer // size % pipeline == rank]
        assert job(GPT, where).recomputed_of(rank) == sum(layer % every == 0 for layer in held)


@pytest.mark.parametrize("recompute", ["selective", "full", ("mlp",)])
@pytest.mark.parametrize("every", [1, 2, 6, 24])
def test_memory_and_time_are_proportional_to_recomputed_layers(recompute, every):
    machine, software = hopper(), ours()
    none = job(GPT, layout(num_layers=24), cast_bytes=2)
    every_layer = none.with_layout(recompute=recompute)
    some = every_layer.with_layout(recompute_every=every)
    jobs = (none, every_layer, some)
    less, more, found = (plan_time(one, machine, software.speed).microbatches for one in jobs)
    assert found == pytest.approx(less + (more - less) / every)
    low, high, held = (plan_memory(one, machine, software.memory).ranks[0] for one in jobs)
    assert held.casts == pytest.approx(low.casts + (high.casts - low.casts) / every)
    assert high.activations <= held.activations


def test_a_selective_layer_repeats_memory_traffic_and_nothing_else() -> None:
    machine, speed = hopper(), ours().speed
    none = job(GPT, layout(tensor=2, context=2, num_layers=24))
    thrifty = none.with_layout(recompute="selective")
    before, after = (layer_parts(one, machine, speed) for one in (none, thrifty))
    more = {name for name, seconds in after.items() if seconds > before[name]}
    assert more == {"memory traffic"}
    assert after["memory traffic"] == pytest.approx(before["memory traffic"] * 4 / 3)
    assert recompute_fraction(thrifty) == (0, 0)
    sizes = [layer_bytes_per_token(one) for one in (none, thrifty)]
    assert layer_bytes_per_token(none.with_layout(recompute="full")) < sizes[1] < sizes[0]


def test_the_plan_has_the_time_of_recomputation() -> None:
    plans = {
        again: plan_recipe(compose(*WHOLE, f"parallelism.recompute={again}"))
        for again in ("none", "selective", "full")
    }
    none = plans["none"]
    assert none.time is not None
    assert none.planned_recomputation is None
    for again in ("selective", "full"):
        plan = plans[again]
        price = plan.planned_recomputation
        assert plan.time is not None
        assert price is not None
        longer = plan.time.total_seconds - none.time.total_seconds
        assert price.extra_seconds == pytest.approx(longer)
        saved = none.memory.fullest_rank_bytes - plan.memory.fullest_rank_bytes
        assert price.saved_bytes == round(saved)
