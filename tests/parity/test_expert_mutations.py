"""A proof finds what is wrong with experts over ranks, and names it."""

from pathlib import Path

import pytest

from command.actions import parity as action
from command.arguments import read_point
from components.parity.compare import Comparison
from components.parity.prover import RANK, Prover

MUTANT = str(Path(__file__).with_name("mutant.py"))
SMALL = ("recipe=mula7b_a1b", "model.num_layers=2", "budget.total_tokens=4_608")
EXPERTS = "layouts=[{expert: 2, zero: 1}]"


@pytest.fixture(scope="module")
def prover(tmp_path_factory: pytest.TempPathFactory) -> Prover:
    folder = tmp_path_factory.mktemp("proofs")
    return Prover(folder=folder, program=RANK, say=lambda _: None, rounding=False)


def compare(prover: Prover, mutation: str) -> Comparison:
    (recipe,) = action.layouts_of(read_point([*SMALL, EXPERTS]))
    prover.program = (MUTANT, mutation)
    proof = prover.prove(recipe)
    assert proof.comparison is not None, proof.failure
    assert not proof.holds
    return proof.comparison


def test_gradients_of_experts_divided_twice_are_named(prover: Prover) -> None:
    comparison = compare(prover, "divide_expert_gradients_twice")
    assert ".mlp." in comparison.gradient.where
    assert comparison.gradient.difference == pytest.approx(0.5)


def test_a_token_lost_on_its_way_shows_in_the_first_loss(prover: Prover) -> None:
    comparison = compare(prover, "lose_a_token_in_dispatch")
    assert comparison.loss.where.startswith("step 1, the microbatch from sample ")
    assert comparison.loss.difference > 1e-6
