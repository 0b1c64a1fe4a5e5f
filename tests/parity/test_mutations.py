"""A proof finds what is wrong and names it.

One thing is broken in the ranks, never in the one process that they are compared with.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from command.actions import parity as action
from command.arguments import read_point
from command.outcome import Status
from components.parity.prover import RANK, Proof, Prover

MUTANT = str(Path(__file__).with_name("mutant.py"))
# Three steps of two layers: what is wrong is wrong in the first.
SMALL = ("recipe=teuken7b", "model.num_layers=2", "budget.total_tokens=4_608")
DATA = "{data: 2, zero: 0}"
ENDS = "{pipeline: 2, zero: 0}"
SLICES = "{tensor: 2, zero: 0}"
CHUNKS = "{context: 2, zero: 0}"


@pytest.fixture(scope="module")
def prover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prover]:
    """One reference for all: the layouts read the same microbatches."""
    folder = tmp_path_factory.mktemp("proofs")
    yield Prover(folder=folder, program=RANK, say=lambda _: None, rounding=False)
    assert len(list(folder.glob("*-1-ranks"))) == 1


def prove(prover: Prover, layout: str, mutation: str | None) -> Proof:
    (recipe,) = action.layouts_of(read_point([*SMALL, f"layouts=[{layout}]"]))
    prover.program = RANK if mutation is None else (MUTANT, mutation)
    return prover.prove(recipe)


@pytest.mark.parametrize("layout", [DATA, ENDS, SLICES, CHUNKS])
def test_without_a_mistake_the_layout_holds(prover: Prover, layout: str) -> None:
    proof = prove(prover, layout, None)
    assert proof.comparison is not None, proof.failure
    assert proof.comparison.problems == []
    assert proof.holds


@pytest.mark.parametrize(
    ("layout", "mutation", "parameter"),
    [
        (DATA, "drop_one_reduction", "layers.1.mlp.up.weight"),
        (DATA, "halve_one_norms_gradient", "layers.0.attention_norm.weight"),
        (ENDS, "let_tied_ends_part", "embedding.weight"),
        (SLICES, "keep_slices_of_norm_gradients", "norm.weight"),
    ],
)
def test_a_wrong_gradient_is_named(
    prover: Prover, layout: str, mutation: str, parameter: str
) -> None:
    proof = prove(prover, layout, mutation)
    assert not proof.holds
    assert proof.comparison is not None, proof.failure
    assert proof.comparison.gradient.where.endswith(parameter)
    assert proof.comparison.gradient.difference > 1e-3


def test_attention_that_asks_no_other_rank_shows_in_the_first_loss(prover: Prover) -> None:
    proof = prove(prover, CHUNKS, "attend_to_own_slice_only")
    assert not proof.holds
    assert proof.comparison is not None, proof.failure
    assert proof.comparison.loss.where == "step 1, the microbatch from sample 0"
    assert proof.comparison.loss.difference > 1e-4


def test_a_wrong_norm_is_found_though_every_gradient_is_right(prover: Prover) -> None:
    proof = prove(prover, DATA, "miss_a_sixth_of_the_global_norm")
    assert not proof.holds
    assert proof.comparison is not None, proof.failure
    assert proof.comparison.gradient.holds
    assert proof.comparison.gradient_norm.difference == pytest.approx(1 / 6)


def test_a_share_of_the_data_that_nobody_reads_is_named(prover: Prover) -> None:
    proof = prove(prover, DATA, "read_the_same_samples")
    assert not proof.holds
    assert proof.comparison is not None, proof.failure
    assert proof.comparison.lacking[0] == "step 1: no rank saw a microbatch from sample 24"


def test_ranks_that_fail_prove_nothing_and_the_first_error_is_told(prover: Prover) -> None:
    proof = prove(prover, DATA, "lose_a_rank")
    assert not proof.holds
    assert proof.comparison is None
    assert "ValueError: this rank was made to fail" in proof.failure


def test_the_command_ends_with_1_and_names_the_parameter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(action, "RANK", (MUTANT, "drop_one_reduction"))
    words = [*SMALL, f"layouts=[{DATA}]", "action=parity", "output=json"]
    assert action.run(read_point(words)).status == Status.DOES_NOT_HOLD
    tree = json.loads(capsys.readouterr().out)
    assert tree["holds"] is False
    assert tree["gradient"]["parameter"] == "layers.1.mlp.up.weight"
    assert tree["gradient"]["largest_relative_difference"] > 1e-3
