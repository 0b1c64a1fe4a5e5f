"""The search's order is the plan's, its first choice never worse than what is published."""

from functools import cache

import pytest

from command.arguments import read_point
from command.composition.compose import compose_run
from command.composition.layout_search import SearchResult
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.planner.layouts import Layouts
from components.planner.memory import deciding_ranks, plan_memory, rank_memory
from components.planner.plan import plan_recipe
from components.planner.search import BEST, Prices, penalise_tight, search_layouts
from components.planner.software import OURS, read_software
from components.planner.time import plan_time
from tests.recipes.compositions import compose, home_of

# Deep pipelines, and data ranks of experts; expert ranks in a pipeline; ZeRO 3, mixers and
# phases; ZeRO 0 over tensor ranks.
TIMED = ["bloom176b", "gpt175b", "mula7b_a1b", "qwen3_next_80b_a3b", "olmo_hybrid_7b"]
TIMED += ["smollm3_3b"]


@cache
def searched(name: str) -> SearchResult:
    point = [f"recipe={name}", f"cluster={home_of(name)}", "parallelism=auto"]
    found = compose_run(read_point(point)).search
    assert found is not None
    return found


def settled(recipe: Recipe) -> Recipe:
    bare = recipe.model_copy()
    for name in ("derived", "stages"):
        bare.__dict__.pop(name, None)
    return bare


@pytest.mark.quick("bloom176b")
@pytest.mark.parametrize("name", TIMED)
def test_the_best_layout_is_no_slower_than_the_published_one(name: str) -> None:
    found = searched(name)
    published = found.published
    assert published is not None
    assert compute_fingerprint(found.recipe) == compute_fingerprint(published)
    best, paper = plan_recipe(found.recipe), plan_recipe(published)
    assert best.time is not None
    assert paper.time is not None
    assert best.time.total_seconds == pytest.approx(found.search.best[0].seconds)
    assert best.memory.fullest_rank_bytes == pytest.approx(found.search.best[0].peak)
    if paper.memory.is_within_limit:
        assert found.search.best[0].weighted_seconds <= penalise_tight(
            paper.time.total_seconds, paper.memory.memory_verdict
        )
    if paper.memory.memory_verdict == "fits":
        assert best.time.total_seconds <= paper.time.total_seconds


@pytest.mark.quick("bloom176b")
@pytest.mark.parametrize("name", TIMED)
def test_tensor_ranks_stay_in_a_node_and_stages_span_nodes(name):
    groups = searched(name).recipe.rank_groups
    layout = groups.layout
    assert groups.find_group("tensor").nodes == 1
    more_than_a_node = layout.num_ranks > groups.devices_per_node
    if layout.pipeline > 1 and more_than_a_node and layout.rank_order[0] == "pipeline":
        assert groups.find_group("pipeline").nodes > 1


@pytest.mark.long
def test_bounds_and_caches_do_not_change_the_order_of_layouts() -> None:
    recipe = settled(compose("playbook8b", "cluster=hopper"))
    hardware, software = recipe.cluster.hardware, read_software(OURS)
    assert not isinstance(hardware, str)
    search = search_layouts(recipe, ranks=32, fixed=frozenset({"recompute"}))
    prices, costs, fitting = Prices(recipe), set(), 0
    layouts = Layouts(recipe, ranks=32, fixed=frozenset({"recompute"}))
    for family in layouts.iterate_families():
        for size in family.sizes:
            job = prices.build_job(family.degrees, size)
            memory = plan_memory(job, hardware, software.memory)
            if memory.is_within_limit:
                fitting += 1
                seconds = plan_time(job, hardware, software.speed).total_seconds
                costs.add(round(penalise_tight(seconds, memory.memory_verdict), 9))
    assert search.fitting == fitting
    assert [round(one.weighted_seconds, 9) for one in search.best] == sorted(costs)[:BEST]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_the_fullest_rank_is_among_the_deciding_ones(schedule: str) -> None:
    stages = 1 if schedule in {"gpipe", "1f1b"} else 2
    words = [f"parallelism.schedule={schedule}", f"parallelism.stages_per_rank={stages}"]
    words += ["parallelism.recompute=none", "parallelism.pipeline=8", "cluster.nodes=32"]
    recipe = compose("bloom176b", "cluster=jean_zay", "budget.ramp_up=none", *words)
    plan, software = plan_recipe(recipe), read_software(OURS)
    some = [rank_memory(plan.job, rank, software.memory) for rank in deciding_ranks(plan.job)]
    assert len(some) < plan.job.layout.pipeline
    assert max(rank.peak_bytes for rank in some) == plan.memory.fullest_rank_bytes


def test_a_tight_layout_must_be_a_sixth_faster() -> None:
    assert penalise_tight(6.0, "tight") == pytest.approx(7.0)
    assert penalise_tight(6.0, "fits") == 6.0
