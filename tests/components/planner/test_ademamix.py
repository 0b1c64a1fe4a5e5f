"""State of AdEMAMix in plan and dry run: three moments, 12 bytes a parameter in float32."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.dryrun.rehearsal import run_two_steps
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.planner.search import Prices
from components.planner.states import compute_states, rank_parameters
from tests.components.planner.test_muon import FLOAT32, SMALL, held_bytes

WORDS = ("recipe=teuken7b", *SMALL)


def composed(*words: str, optimizer: str = "ademamix") -> Recipe:
    return compose_recipe(read_point([*WORDS, f"optimizer={optimizer}", *words]))


def test_the_plan_counts_the_state_that_a_step_leaves() -> None:
    recipe = composed(*FLOAT32)
    job = job_from_recipe(recipe)
    weights, state = held_bytes(recipe)
    assert state == 3 * weights
    assert checkpoint_bytes(job) == weights + state
    found = compute_states(job, rank_parameters(job, 0))
    assert found.optimizer == 3 * found.weights


@pytest.mark.parametrize("engine", ["mesh", "deepspeed"])
def test_twelve_bytes_a_parameter_are_divided_as_eight_are(engine: str) -> None:
    words = ("parallelism.zero=1", "parallelism.data=2", f"parallelism.engine={engine}")
    jobs = (job_from_recipe(composed(*words, optimizer=name)) for name in ("ademamix", "adamw"))
    one, other = (compute_states(job, rank_parameters(job, 0)) for job in jobs)
    assert one.optimizer == other.optimizer * 12 / 8
    assert one._replace(optimizer=0.0) == other._replace(optimizer=0.0)


def test_a_search_counts_it_too() -> None:
    words = ("recipe=teuken7b", "scale=full", "cluster=juwels", "optimizer=ademamix")
    recipe = compose_recipe(read_point([*words]))
    assert Prices(recipe).build_job(recipe.parallelism, 1).moment_bytes == 12


@pytest.mark.long
def test_a_dry_run_holds_what_is_planned() -> None:
    recipe = composed(*FLOAT32, "cluster.device=cuda", "parallelism.zero=1")
    job, found = job_from_recipe(recipe), run_two_steps(recipe, 0)
    planned = compute_states(job, rank_parameters(job, 0)).optimizer
    held = found.peaks["update"].by_category["optimizer"]
    assert held == pytest.approx(planned, rel=0.02)
