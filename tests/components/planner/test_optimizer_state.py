"""State of Muon and AdEMAMix in the plan: what a step really leaves, of every parameter."""

from dataclasses import replace

import pytest
import torch

from components.build import build_node
from components.config.recipe import Recipe
from components.dryrun.rehearsal import run_two_steps
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.planner.search import Prices
from components.planner.states import compute_states, rank_parameters
from tests.components.layouts import parallelism
from tests.recipes.compositions import compose

SMALL = (
    *("model.dim=32", "model.num_layers=2", "model.attention.head_dim=8"),
    "model.mlp.ffn_dim=48",
)
FLOAT32 = tuple(f"precision.{key}=float32" for key in ("compute", "accumulate", "reduce"))
EXPERTS = ("mula7b_a1b", "model.mlp.num_experts=4", "model.mlp.top_k=2")


def composed(name: str, optimizer: str, *words: str) -> Recipe:
    return compose(name, f"optimizer={optimizer}", *SMALL, *words)


def held_bytes(recipe: Recipe) -> tuple[int, int]:
    """Take a step on one process: bytes of weights, and of state but for counters."""
    model = build_node(recipe.model, "model")
    optimizer = build_node(recipe.optimizer, "optimizer")(
        parameters=list(model.named_parameters())
    )
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    kept = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    return sum(one.nbytes for one in model.parameters()), sum(one.nbytes for one in kept)


@pytest.mark.parametrize(
    "words", [("teuken7b",), ("bloom560m", "precision.loss_scale=none"), EXPERTS, ("mula1b",)]
)
def test_the_plan_counts_the_state_that_a_step_of_muon_leaves(words: tuple[str, ...]) -> None:
    recipe = composed(words[0], "muon", *words[1:], *FLOAT32)
    job = job_from_recipe(recipe)
    weights, state = held_bytes(recipe)
    found = compute_states(job, rank_parameters(job, 0))
    norms = weights - found.weights  # beside the layers: a few vectors that no plan counts
    assert 0 <= norms <= 4 * recipe.decoder_spec.dim * 4
    assert state == found.optimizer + 2 * norms
    assert checkpoint_bytes(job) == weights + state


def test_one_moment_is_sharded_like_two() -> None:
    job = job_from_recipe(composed("teuken7b", "muon", *FLOAT32))
    alone = compute_states(job, rank_parameters(job, 0))
    shared = replace(job, layout=parallelism(data=4, zero=1))
    assert compute_states(shared, rank_parameters(shared, 0)).optimizer == alone.optimizer / 4


def test_the_plan_counts_the_three_moments_of_ademamix() -> None:
    recipe = composed("teuken7b", "ademamix", *FLOAT32)
    job = job_from_recipe(recipe)
    weights, state = held_bytes(recipe)
    assert state == 3 * weights
    assert checkpoint_bytes(job) == weights + state
    found = compute_states(job, rank_parameters(job, 0))
    assert found.optimizer == 3 * found.weights


@pytest.mark.parametrize("engine", ["mesh", "deepspeed"])
def test_three_moments_are_sharded_like_two(engine: str) -> None:
    words = ("parallelism.zero=1", "parallelism.data=2", f"parallelism.engine={engine}")
    recipes = (composed("teuken7b", optimizer, *words) for optimizer in ("ademamix", "adamw"))
    jobs = map(job_from_recipe, recipes)
    one, other = (compute_states(job, rank_parameters(job, 0)) for job in jobs)
    assert one.optimizer == other.optimizer * 12 / 8
    assert one._replace(optimizer=0.0) == other._replace(optimizer=0.0)


def test_a_search_counts_three_moments_too() -> None:
    recipe = compose("teuken7b", "scale=full", "cluster=juwels", "optimizer=ademamix")
    assert Prices(recipe).build_job(recipe.parallelism, 1).moment_bytes == 12


@pytest.mark.long
def test_a_dry_run_holds_the_planned_state() -> None:
    words = (*FLOAT32, "cluster.device=cuda", "parallelism.zero=1")
    recipe = composed("teuken7b", "ademamix", *words)
    job, found = job_from_recipe(recipe), run_two_steps(recipe, 0)
    planned = compute_states(job, rank_parameters(job, 0)).optimizer
    held = found.peaks["update"].by_category["optimizer"]
    assert held == pytest.approx(planned, rel=0.02)
