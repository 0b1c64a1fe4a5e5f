"""Under every schedule each microbatch and each weight has what one process gives it."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from components.config.stages import SPLIT_SCHEDULES
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import GPT, XIELU, Parts, randomized
from tests.components.model.specs import LAYER_NORM


class Found(NamedTuple):
    """The largest relative differences from one process, and which losses were seen."""

    loss: float
    gradient: float
    losses: int
    parameters: set[str]


def run_steps(parts: Parts, layout: Layout, counts: Sequence[int], evaluates: bool) -> Found:
    """Take a step of each number of microbatches, with or without evaluation between them."""
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    loss = gradient = 0.0
    losses = 0
    for step, count in enumerate(counts):
        batches = [batch_of(step, r, microbatches=count) for r in range(layout.data)]
        expected = whole.backward(batches)[sharded.mesh.data_rank]
        found = sharded.backward(batches[sharded.mesh.data_rank])
        losses += len(found)
        loss = max([loss, *_relative(found, expected)])
        gradient = max(gradient, largest_difference(sharded.gradients(), whole.gradients()))
        if evaluates:
            loss = max([loss, *_evaluate(whole, sharded)])
    return Found(loss, gradient, losses, set(sharded.gradients()))


def _relative(found: Sequence[float], expected: Sequence[float]) -> list[float]:
    pairs = zip(found, expected, strict=bool(found))
    return [abs(ours - theirs) / theirs for ours, theirs in pairs]


@torch.no_grad()
def _evaluate(whole: Whole, sharded: ParallelModel) -> list[float]:
    """Compare losses without dropout, of as many and as long rows as no step has."""
    decoders = [whole.decoder, *sharded.stages]
    differences = []
    for rows in (batch_of(50, 0, microbatches=1)[0], batch_of(51, 0)[:, 0, :13]):
        for decoder in decoders:
            decoder.eval()
        expected: Tensor = whole.decoder.compute_loss(rows[:, :-1], rows[:, 1:])
        # Messages of one kind on one group: NCCL makes other connections for those alone.
        refuse = Mock(side_effect=AssertionError("a message that is in no batch"))
        with patch.multiple(dist, send=refuse, recv=refuse):
            found = sharded.microbatches.evaluate_rows(rows)
        has_loss = any(stage.final_norm is not None for stage in sharded.stages)
        assert (found is not None) == has_loss
        if found is not None:
            differences += _relative([found.item()], [expected.item()])
        for decoder in decoders:
            decoder.train()
    return differences


# Double precision has 16 digits; where tensor ranks sum, the last three differ.
TOLERANCE = 1e-13
TENSOR_TOLERANCE = 1e-11

PARTS = GPT._replace(embedding_norm=LAYER_NORM, num_layers=5, z_loss=0.1)
DROPS = PARTS._replace(dropout=0.1, attention_dropout=0.1)
SCHEDULES = {
    "gpipe": Layout(schedule="gpipe"),
    "1f1b": Layout(schedule="1f1b"),
    "interleaved": Layout(schedule="interleaved", stages_per_rank=2),
    "zero_bubble": Layout(schedule="zero_bubble", stages_per_rank=2),
    "zbv": Layout(schedule="zbv", stages_per_rank=2),
    "dualpipev": Layout(schedule="dualpipev", stages_per_rank=2),
}
RAMP_UP = [4, 6]
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


def assert_as_one_process(found: list[Found], microbatches: int, tolerance: float) -> None:
    """Somebody saw each loss, and every weight is somewhere."""
    for rank in found:
        assert rank.loss < tolerance
        assert rank.gradient < tolerance
        assert rank.losses in {0, microbatches}
    assert any(rank.losses for rank in found)
    names = set.union(*(rank.parameters for rank in found))
    assert {f"layers.{index}.mlp.down.weight" for index in range(5)} <= names
    assert {"embedding.weight", "positions.weight", "final_norm.bias"} <= names


@pytest.mark.quick("1f1b")
@schedules
def test_two_ranks_compute_what_one_does_while_the_batch_grows(
    two_ranks: Ranks, schedule: str
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2)
    found = two_ranks(run_steps, PARTS, layout, [*RAMP_UP, 4], False)
    assert_as_one_process(found, 14, TOLERANCE)


@pytest.mark.quick("zero_bubble")
@pytest.mark.parametrize("schedule", ["interleaved", *sorted(SPLIT_SCHEDULES)])
def test_what_each_microbatch_leaves_is_averaged_at_once(
    four_ranks: Ranks, schedule: str
) -> None:
    """Where weights have a pass of their own, that is when ZeRO 2 takes their gradients."""
    layout = SCHEDULES[schedule]._replace(pipeline=2, shard=2, zero=2, bucket_elements=1_000)
    assert_as_one_process(four_ranks(run_steps, PARTS, layout, [4, 4], False), 8, TOLERANCE)


@pytest.mark.quick("1f1b")
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipev"])
def test_evaluation_between_steps_finds_the_loss_and_changes_nothing(
    two_ranks: Ranks, schedule: str
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2)
    assert_as_one_process(two_ranks(run_steps, DROPS, layout, [4, 4], True), 8, TOLERANCE)


@pytest.mark.quick("zero_bubble")
@schedules
def test_four_ranks_compute_what_one_does(four_ranks: Ranks, schedule: str) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=4)
    parts = PARTS._replace(num_layers=8)
    counts = [8, 12] if schedule == "dualpipev" else [4, 8]  # one for each of its stages
    found = four_ranks(run_steps, parts, layout, counts, True)
    assert_as_one_process(found, sum(counts), TOLERANCE)


@pytest.mark.quick("1f1b-full-1", "interleaved-selective-2")
@pytest.mark.parametrize(
    ("schedule", "recompute", "every"),
    [
        ("gpipe", "selective", 1),
        ("1f1b", "full", 1),
        ("interleaved", "selective", 2),
        ("zero_bubble", "full", 1),
        ("zbv", "selective", 1),
        ("dualpipev", "selective", 2),
    ],
)
def test_recomputed_layers_drop_what_one_process_drops(
    two_ranks: Ranks, schedule: str, recompute: Any, every: int
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2)
    layout = layout._replace(recompute=recompute, recompute_every=every)
    assert_as_one_process(two_ranks(run_steps, DROPS, layout, RAMP_UP, False), 10, TOLERANCE)


@pytest.mark.quick("zbv")
@pytest.mark.parametrize("schedule", sorted(SPLIT_SCHEDULES))
def test_split_backward_passes_drop_what_one_process_drops(
    two_ranks: Ranks, schedule: str
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2)
    assert_as_one_process(two_ranks(run_steps, DROPS, layout, RAMP_UP, False), 10, TOLERANCE)


@pytest.mark.quick("1f1b-1")
@pytest.mark.parametrize(
    ("schedule", "zero"),
    [("gpipe", 2), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zbv", 2)],
)
def test_stages_of_data_ranks_compute_what_one_process_does(
    four_ranks: Ranks, schedule: str, zero: int
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2, shard=2, zero=zero)
    assert_as_one_process(four_ranks(run_steps, PARTS, layout, RAMP_UP, True), 10, TOLERANCE)


@pytest.mark.quick("interleaved")
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
def test_stages_of_sliced_tensor_ranks_compute_what_one_process_does(
    four_ranks: Ranks, schedule: str
) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2, tensor=2, sequence_parallel=True)
    found = four_ranks(run_steps, PARTS, layout, [4], False)
    assert_as_one_process(found, 4, TENSOR_TOLERANCE)


@pytest.mark.parametrize(
    "layout",
    [
        SCHEDULES["zero_bubble"]._replace(pipeline=2),
        Layout(tensor=2, sequence_parallel=True, recompute="selective"),
    ],
    ids=["zero_bubble", "recomputed"],
)
def test_a_trained_activation_computes_what_one_process_does(
    two_ranks: Ranks, layout: Layout
) -> None:
    """Its scalars' gradients come with those of weights, and once of a layer computed twice."""
    parts = PARTS._replace(mlp=XIELU)
    assert_as_one_process(two_ranks(run_steps, parts, layout, [4], False), 4, TENSOR_TOLERANCE)


def test_without_stages_ranks_accumulate_as_one_process_does(two_ranks: Ranks) -> None:
    for layout in (
        Layout(shard=2, zero=3),
        Layout(shard=2, zero=3, recompute="selective", recompute_every=2),
    ):
        found = two_ranks(run_steps, DROPS, layout, [2, 3], True)
        assert_as_one_process(found, 5, TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["zero_bubble", "dualpipev"])
def test_compiled_layers_compute_what_one_process_does(two_ranks: Ranks, schedule: str) -> None:
    layout = SCHEDULES[schedule]._replace(pipeline=2, compile="layers")
    found = two_ranks(run_steps, PARTS, layout, [4], True)
    assert_as_one_process(found, 4, TENSOR_TOLERANCE)


@pytest.mark.long
def test_compiled_layers_of_sliced_tensor_ranks_compute_what_one_process_does(
    two_ranks: Ranks,
) -> None:
    layout = Layout(tensor=2, sequence_parallel=True, compile="layers", recompute="selective")
    found = two_ranks(run_steps, PARTS, layout, [2], False)
    assert_as_one_process(found, 2, TENSOR_TOLERANCE)


@pytest.mark.parametrize("schedule", sorted(SPLIT_SCHEDULES))
@pytest.mark.parametrize("version", ["2.10.0a0+git449b176", "2.11.0+cu130", "2.12.1"])
def test_split_backward_passes_are_refused_where_torch_computes_them_wrongly(
    version: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    check_schedule("interleaved")
    with pytest.raises(RecipeError) as refused:
        check_schedule(schedule)
    assert refused.value.path == "parallelism.schedule"
    assert version in refused.value.problem
    assert "parallelism.schedule=interleaved" in refused.value.remedy


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.15.0", "3.0.0"])
def test_later_releases_take_every_schedule(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    for schedule in SCHEDULES:
        check_schedule(schedule)
