"""The range of a planned step comes from the measured steps of its class."""

from dataclasses import replace

import pytest

from components.planner.accuracy import FEWEST_ROWS, find_accuracy
from components.planner.job import TrainingJob
from tests.components.planner.jobs import gpt, job, layout

SMALL = gpt(dim=1_024, num_layers=32, num_heads=16)


def dense(ranks: int) -> TrainingJob:
    return job(SMALL, layout(data=ranks))


def experts() -> TrainingJob:
    mlp = SMALL.mlp.model_copy(update={"num_experts": 8, "top_k": 2})
    return replace(dense(8), shape=SMALL.model_copy(update={"mlp": mlp}))


@pytest.mark.parametrize(("ranks", "nodes"), [(8, "few"), (64, "few"), (65, "many")])
def test_a_machine_with_enough_measured_steps_has_its_own_errors(
    ranks: int, nodes: str
) -> None:
    accuracy = find_accuracy("hopper", dense(ranks))
    assert (accuracy.machine, accuracy.nodes) == ("hopper", nodes)
    assert accuracy.rows >= FEWEST_ROWS


@pytest.mark.parametrize("machine", ["juwels", "unmeasured"])
def test_a_machine_with_few_measured_steps_has_the_errors_of_others(machine: str) -> None:
    accuracy = find_accuracy(machine, dense(64))
    assert (accuracy.machine, accuracy.layers) == (None, "dense")


def test_plans_of_experts_do_not_take_the_errors_of_dense_layers() -> None:
    wide, narrow = find_accuracy("hopper", experts()), find_accuracy("hopper", dense(8))
    assert wide.layers == "experts"
    assert wide.p90_factor > narrow.p90_factor


def test_a_class_is_described_by_machine_nodes_and_kind() -> None:
    few = find_accuracy("hopper", dense(8)).model_copy(update={"rows": 3})
    assert few.description == "3 on hopper with up to 8 nodes"
    others = find_accuracy("juwels", experts()).model_copy(update={"rows": 3})
    assert others.description == "3 of mixtures of experts on other machines"
