"""A checkpoint is complete or not there; any layout goes on from any other's, bit for bit."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from components.checkpoint.metadata import RunProgress
from components.config.model_spec.feed_forward import ExpertsSpec
from components.config.model_spec.positions import LearnedSpec
from components.errors import RecipeError
from tests.components.checkpoint.checkpoint_cases import (
    State,
    go_on,
    load,
    load_counting,
    save,
    start,
    state_of,
    train,
    train_alone,
)
from tests.components.checkpoint.digest_cases import refused
from tests.components.checkpoint.saving_cases import load_checkpoint, save_checkpoint
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GELU, LAYER_NORM, LENGTH, Parts

# One row in three of the MLP's, 31 of the embedding's on a tensor rank: nothing divides.
PARTS = Parts(
    num_kv_heads=8,
    bias=True,
    tied=True,
    positions=LearnedSpec(num_positions=LENGTH),
    mlp=GELU.model_copy(update={"ffn_dim": 6}),
    norm=LAYER_NORM,
    rows=62,
)
MIXTURE = ExpertsSpec(
    num_experts=4,
    top_k=2,
    ffn_dim=5,
    activation="silu",
    gated=True,
    renormalize=False,
    routing="learned",
    auxiliary_loss=0.1,
    auxiliary_scope="model",
    z_loss=0.0,
    path="auto",
)
ALONE = Layout()
LAYOUTS = {
    "tensor, zero 1": Layout(tensor=2, shard=2, zero=1),
    "tensor, zero 3": Layout(tensor=2, shard=2, zero=3),
    "tied stages, zero 2": Layout(pipeline=2, shard=2, zero=2),
    "tied stages, tensor": Layout(pipeline=2, tensor=2),
    "zero 3": Layout(shard=4, zero=3),
    "replicas, zero 1": Layout(replicate=2, shard=2, zero=1),
}
PAIRS = [
    ("tensor, zero 1", "tied stages, zero 2"),
    ("tensor, zero 3", "zero 3"),
    ("tied stages, zero 2", "tensor, zero 3"),
    ("tied stages, tensor", "replicas, zero 1"),
    ("zero 3", "tensor, zero 1"),
]
STEPS = 2
SAME_TRAINING = 1e-9  # of Adam on gradients whose sums have another order

ABOUT_ITSELF = ("ignore::FutureWarning", "ignore::UserWarning")
pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings(*ABOUT_ITSELF),  # torch's own, while it saves and loads
]


class Saved(NamedTuple):
    """A checkpoint, and what the ranks had that wrote it."""

    checkpoint: Path
    whole: State


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    @cache
    def save_in(name: str) -> Saved:
        folder = tmp_path_factory.mktemp("saved")
        whole = merged(ranks(save, PARTS, LAYOUTS[name], folder, STEPS))
        return Saved(only_checkpoint(folder), whole)

    return save_in


def only_checkpoint(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def merged(states: list[State]) -> State:
    """Put the stages' parts together; what several ranks have must be equal."""
    whole: State = {}
    for state in states:
        for name, tensor in state.items():
            assert torch.equal(whole.setdefault(name, tensor), tensor), name
    return whole


def assert_equal(found: State, expected: State) -> None:
    """Weights, both moments and the counter of every weight, to the bit."""
    assert found.keys() == expected.keys()
    assert len(found) % 4 == 0
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_resumed_rank_has_the_same_bits(tmp_path: Path) -> None:
    rank = start(PARTS, ALONE, seed=0)
    train(rank, range(STEPS))
    saved = save_checkpoint(tmp_path, rank.state, RunProgress(2, 20))
    train(rank, range(STEPS, 2 * STEPS))
    other = start(PARTS, ALONE, seed=1)
    progress = load_checkpoint(saved, other.state)
    assert progress == RunProgress(step=2, tokens=20)
    train(other, range(STEPS, 2 * STEPS))
    assert_equal(state_of(other), state_of(rank))


def test_resumed_router_biases_have_the_same_bits(ranks: Ranks, tmp_path) -> None:
    parts = Parts(mlp=MIXTURE.model_copy(update={"balance_rate": 0.001}))
    rank = start(parts, ALONE, seed=0)
    train(rank, range(STEPS))
    saved = save_checkpoint(tmp_path, rank.state, RunProgress(2, 20))
    halfway = state_of(rank)
    assert halfway["layers.0.mlp.choice_bias"].count_nonzero()
    layout = Layout(shard=2, expert=2, zero=1)
    for name, value in merged(ranks(load, parts, layout, saved)).items():
        assert torch.equal(value, halfway[name]), name
    train(rank, range(STEPS, 2 * STEPS))
    found, expected = go_on(parts, ALONE, saved, range(STEPS, 2 * STEPS)), state_of(rank)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_run_without_an_update_resumes(tmp_path: Path) -> None:
    rank, other = start(PARTS, ALONE, seed=0), start(PARTS, ALONE, seed=1)
    saved = save_checkpoint(tmp_path, rank.state, RunProgress(0, 0))
    load_checkpoint(saved, other.state)
    assert_equal(state_of(other), state_of(rank))
    train(other, range(STEPS))
    train(rank, range(STEPS))
    assert_equal(state_of(other), state_of(rank))
    untouched = start(PARTS, ALONE, seed=0)
    train(untouched, range(STEPS))
    assert_equal(state_of(rank), state_of(untouched))


def test_loading_changes_no_learning_rate_and_files_have_no_pickle(tmp_path):
    rank = start(PARTS, ALONE, seed=0)
    saved = save_checkpoint(tmp_path, rank.state, RunProgress(0, 0))
    load_checkpoint(saved, rank.state)
    assert {file.suffix for file in saved.iterdir()} == {".safetensors", ".json"}
    assert [group["lr"] for group in rank.optimizer.param_groups] == [0.01]
    assert all(shard.parameter.grad is None for shard in rank.sharded.shards)


@pytest.mark.quick("zero 3")
@pytest.mark.parametrize("name", LAYOUTS)
def test_one_process_loads_what_a_layout_saved(saved, name):
    checkpoint, whole = saved(name)
    assert_equal(load(PARTS, ALONE, checkpoint), whole)


@pytest.mark.quick("tensor, zero 1")
@pytest.mark.parametrize("name", ["tensor, zero 1", "tied stages, zero 2"])
def test_pieces_of_a_tensor_in_one_file_are_put_together(ranks, tmp_path, name):
    whole = merged(ranks(save, PARTS, LAYOUTS[name], tmp_path, STEPS, 1))
    checkpoint = only_checkpoint(tmp_path)
    assert len(list(checkpoint.glob("*.safetensors"))) == 1
    assert_equal(load(PARTS, ALONE, checkpoint), whole)


@pytest.mark.quick("tied stages, zero 2")
@pytest.mark.parametrize("name", ["tensor, zero 1", "tensor, zero 3", "tied stages, zero 2"])
def test_a_saved_layout_equals_the_training_of_one_process(saved, name):
    expected = train_alone(PARTS, LAYOUTS[name].data, STEPS)
    found = load(PARTS, ALONE, saved(name).checkpoint)
    for weight, tensor in expected.items():
        assert (found[weight] - tensor).abs().max() < SAME_TRAINING, weight


@pytest.mark.quick("tied stages, zero 2")
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_loads_what_one_process_saved(ranks: Ranks, tmp_path, name: str) -> None:
    whole = save(PARTS, ALONE, tmp_path, STEPS)
    found = merged(ranks(load, PARTS, LAYOUTS[name], only_checkpoint(tmp_path)))
    assert_equal(found, whole)


@pytest.mark.quick("replicas, zero 3")
@pytest.mark.parametrize(
    "layout",
    [Layout(shard=4), *(Layout(replicate=2, shard=2, zero=zero) for zero in (2, 3))],
    ids=["zero 0", "replicas, zero 2", "replicas, zero 3"],
)
def test_one_rank_reads_a_replicated_tensor(ranks, tmp_path, layout):
    whole = merged([save(PARTS, ALONE, tmp_path, STEPS)])
    found = ranks(load_counting, PARTS, layout, only_checkpoint(tmp_path))
    assert_equal(merged([state for state, _ in found]), whole)
    read: Counter[str] = sum((counted for _, counted in found), Counter())
    for name, value in whole.items():
        weight, _, key = name.partition(" ")
        stored = f"optimizer.state.{weight}.{key}" if key else f"model.{weight}"
        assert read[stored] == value.numel(), stored
    # Who holds all of it reads no more than its share, with room for the largest tensor.
    largest = max(value.numel() for value in whole.values())
    share = sum(value.numel() for value in whole.values()) / len(found)
    assert all(counted.total() < share + largest for _, counted in found)


@pytest.mark.quick("tensor, zero 1-tied stages, zero 2")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_layout_loads_what_another_saved(ranks, saved, first, second):
    checkpoint, whole = saved(first)
    assert_equal(merged(ranks(load, PARTS, LAYOUTS[second], checkpoint)), whole)


@pytest.mark.quick("tied stages, zero 2")
@pytest.mark.parametrize("name", ["tensor, zero 1", "tensor, zero 3", "tied stages, zero 2"])
def test_a_resumed_layout_has_the_same_bits(ranks, saved, tmp_path, name):
    uninterrupted = merged(ranks(save, PARTS, LAYOUTS[name], tmp_path, 2 * STEPS))
    steps = range(STEPS, 2 * STEPS)
    resumed = merged(ranks(go_on, PARTS, LAYOUTS[name], saved(name).checkpoint, steps))
    assert_equal(resumed, uninterrupted)


DEEP = PARTS._replace(num_layers=4)
LOOP = Layout(pipeline=2, shard=2, zero=1, schedule="interleaved", stages_per_rank=2)
V = LOOP._replace(schedule="zbv")


@pytest.mark.quick("v to one")
@pytest.mark.parametrize(
    ("first", "second"),
    [(V, LOOP), (LOOP, V), (V, ALONE)],
    ids=["v to loop", "loop to v", "v to one"],
)
def test_a_v_schedule_saves_the_names_of_the_whole_model(ranks, tmp_path, first, second):
    whole = merged(ranks(save, DEEP, first, tmp_path, STEPS))
    checkpoint = only_checkpoint(tmp_path)
    moved = [load(DEEP, ALONE, checkpoint)] if second == ALONE else None
    assert_equal(merged(moved or ranks(load, DEEP, second, checkpoint)), whole)
    expected = train_alone(DEEP, first.data, STEPS)
    assert all((whole[name] - x).abs().max() < SAME_TRAINING for name, x in expected.items())


@pytest.mark.long
def test_a_resumed_v_schedule_has_the_same_bits(ranks: Ranks, tmp_path: Path) -> None:
    uninterrupted = merged(ranks(save, DEEP, V, tmp_path / "whole", 2 * STEPS))
    ranks(save, DEEP, V, tmp_path / "killed", STEPS)
    checkpoint = only_checkpoint(tmp_path / "killed")
    steps = range(STEPS, 2 * STEPS)
    assert_equal(merged(ranks(go_on, DEEP, V, checkpoint, steps)), uninterrupted)


EXPERTS = PARTS._replace(mlp=MIXTURE, tied=False)
WITH_EXPERTS = {
    "expert 4": Layout(expert=4, zero=1),
    "expert 2, plain": Layout(shard=2, expert=2, zero=1, expert_aware=False),
    "stages of experts": Layout(pipeline=2, expert=2, zero=1),
}


@pytest.mark.quick("expert 4")
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_move_between_layouts(ranks: Ranks, tmp_path, name: str) -> None:
    whole = merged(ranks(save, EXPERTS, WITH_EXPERTS["expert 4"], tmp_path, STEPS))
    checkpoint = only_checkpoint(tmp_path)
    assert_equal(merged(ranks(load, EXPERTS, WITH_EXPERTS[name], checkpoint)), whole)
    assert_equal(load(EXPERTS, ALONE, checkpoint), whole)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (PARTS._replace(num_layers=3), "model.layers.2.attention.key.bias (48,) is missing"),
        (PARTS._replace(num_layers=1), "64 extra tensors, first model.layers.1.attention.key"),
        (PARTS._replace(rows=66), "model.embedding.weight is (62, 24) there, (66, 24) in"),
    ],
    ids=["more layers", "fewer layers", "more rows"],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, other, difference):
    save(PARTS, ALONE, tmp_path, STEPS)
    message = re.escape(f"does not match the recipe's model or optimizer: {difference}")
    with pytest.raises(RecipeError, match=message):
        load(other, ALONE, only_checkpoint(tmp_path))


def test_a_tensor_missing_on_one_stage_stops_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    save(PARTS, ALONE, tmp_path, STEPS)
    taller = PARTS._replace(num_layers=3)
    layout, checkpoint = LAYOUTS["tied stages, tensor"], only_checkpoint(tmp_path)
    (said,) = set(ranks(refused, load, taller, layout, checkpoint))
    assert "model.layers.2.attention.key.bias (48,) is missing" in said
