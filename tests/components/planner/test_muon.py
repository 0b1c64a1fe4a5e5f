"""State of Muon in the plan: what a step really leaves, of every kind of parameter."""

from dataclasses import replace

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.config.recipe import Recipe
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.planner.states import compute_states, rank_parameters
from tests.components.layouts import parallelism

SMALL = (
    "model.dim=32",
    "model.num_layers=2",
    "model.attention.head_dim=8",
    "model.mlp.ffn_dim=48",
)
FLOAT32 = (
    "precision.compute=float32",
    "precision.accumulate=float32",
    "precision.reduce=float32",
)
EXPERTS = ("mula7b_a1b", "model.mlp.num_experts=4", "model.mlp.top_k=2")


def composed(name: str, *words: str) -> Recipe:
    return compose_recipe(read_point([f"recipe={name}", "optimizer=muon", *SMALL, *words]))


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
def test_the_plan_counts_the_state_that_a_step_leaves(words: tuple[str, ...]) -> None:
    recipe = composed(*words, *FLOAT32)
    job = job_from_recipe(recipe)
    weights, state = held_bytes(recipe)
    found = compute_states(job, rank_parameters(job, 0))
    norms = weights - found.weights  # beside the layers: a few vectors that no plan counts
    assert 0 <= norms <= 4 * recipe.decoder_spec.dim * 4
    assert state == found.optimizer + 2 * norms
    assert checkpoint_bytes(job) == weights + state


def test_ranks_share_ones_momentum_as_they_share_two_moments() -> None:
    job = job_from_recipe(composed("teuken7b", *FLOAT32))
    alone = compute_states(job, rank_parameters(job, 0))
    shared = replace(job, layout=parallelism(data=4, zero=1))
    assert compute_states(shared, rank_parameters(shared, 0)).optimizer == alone.optimizer / 4
