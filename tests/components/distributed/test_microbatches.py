"""Losses and gradients of every pipeline schedule equal one process."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from components.config.stages import SPLIT_SCHEDULES
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError
from tests.components.distributed import layout_cases
from tests.components.distributed.layout_cases import Layout, batch_of
from tests.components.distributed.tensor_cases import GPT, XIELU, Parts, randomized
from tests.components.model.specs import LAYER_NORM


class Found(NamedTuple):
    """Largest relative differences from one process, count of losses, and parameters."""

    loss: float
    gradient: float
    losses: int
    parameters: set[str]


def run_steps(parts: Parts, layout: Layout, counts: Sequence[int], evaluates: bool) -> Found:
    """Run one step per number of microbatches, with or without evaluation in between."""
    model = randomized(parts)
    whole, sharded = layout_cases.Whole(model), layout_cases.ParallelModel(model, layout)
    loss = gradient = 0.0
    losses = 0
    for step, count in enumerate(counts):
        batches = [batch_of(step, r, microbatches=count) for r in range(layout.data)]
        expected = whole.backward(batches)[sharded.mesh.data_rank]
        found = sharded.backward(batches[sharded.mesh.data_rank])
        losses += len(found)
        loss = max([loss, *_relative(found, expected)])
        gradient = max(
            gradient, layout_cases.largest_difference(sharded.gradients(), whole.gradients())
        )
        if evaluates:
            loss = max([loss, *_evaluate(whole, sharded)])
    return Found(loss, gradient, losses, set(sharded.gradients()))


def _relative(found: Sequence[float], expected: Sequence[float]) -> list[float]:
    pairs = zip(found, expected, strict=bool(found))
    return [abs(ours - theirs) / theirs for ours, theirs in pairs]


@torch.no_grad()
def _evaluate(whole: layout_cases.Whole, sharded: layout_cases.ParallelModel) -> list[float]:
    """Compare evaluation losses for row counts and lengths that no step has."""
    decoders = [whole.decoder, *sharded.stages]
    differences = []
    for rows in (batch_of(50, 0, microbatches=1)[0], batch_of(51, 0)[:, 0, :13]):
        for decoder in decoders:
            decoder.eval()
        expected: Tensor = whole.decoder.compute_loss(rows[:, :-1], rows[:, 1:])
        # A send or receive outside of a batch would open further NCCL connections.
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
DEEP = PARTS._replace(num_layers=8)
SCHEDULES = {
    "gpipe": Layout(schedule="gpipe"),
    "1f1b": Layout(schedule="1f1b"),
    "interleaved": Layout(schedule="interleaved", stages_per_rank=2),
    "zero_bubble": Layout(schedule="zero_bubble", stages_per_rank=2),
    "zbv": Layout(schedule="zbv", stages_per_rank=2),
    "dualpipev": Layout(schedule="dualpipev", stages_per_rank=2),
}
SPLIT = sorted(SPLIT_SCHEDULES)


class Steps(NamedTuple):
    """A model, its layout and the microbatches of each step."""

    parts: Parts
    layout: Layout
    counts: Sequence[int]
    evaluates: bool = False
    tolerance: float = TOLERANCE


def steps(
    schedule: str, *counts: int, parts: Parts = PARTS, evaluates: bool = False, **layout: Any
) -> Steps:
    """Make steps with two stages and further ``layout`` settings."""
    whole = SCHEDULES[schedule]._replace(**{"pipeline": 2} | layout)
    tolerance = TENSOR_TOLERANCE if whole.tensor > 1 or whole.compile != "none" else TOLERANCE
    return Steps(parts, whole, counts, evaluates, tolerance)


CASES = {f"growing batch, {schedule}": steps(schedule, 4, 6, 4) for schedule in SCHEDULES}
# With separate passes for weights, ZeRO 2 reduces gradients in these passes.
CASES |= {
    f"zero 2, {schedule}": steps(schedule, 4, 4, shard=2, zero=2, bucket_elements=1_000)
    for schedule in ("interleaved", *SPLIT)
}
CASES |= {
    f"evaluation between, {schedule}": steps(schedule, 4, 4, parts=DROPS, evaluates=True)
    for schedule in ("1f1b", "interleaved", "dualpipev")
}
CASES |= {
    f"four stages, {schedule}": steps(schedule, *counts, parts=DEEP, evaluates=True, pipeline=4)
    for schedule in SCHEDULES
    for counts in [(8, 12) if schedule == "dualpipev" else (4, 8)]  # at least one per stage
}
CASES |= {
    f"recomputed, {schedule}": steps(
        schedule, 4, 6, parts=DROPS, recompute=recompute, recompute_every=every
    )
    for schedule, recompute, every in (
        *(("gpipe", "selective", 1), ("1f1b", "full", 1), ("interleaved", "selective", 2)),
        *(("zero_bubble", "full", 1), ("zbv", "selective", 1), ("dualpipev", "selective", 2)),
    )
}
CASES |= {f"drops, {schedule}": steps(schedule, 4, 6, parts=DROPS) for schedule in SPLIT}
CASES |= {
    f"data ranks, {schedule}": steps(schedule, 4, 6, evaluates=True, shard=2, zero=zero)
    for schedule, zero in zip(SCHEDULES, (2, 1, 2, 1, 2), strict=False)
}
CASES |= {
    f"tensor ranks, {schedule}": steps(schedule, 4, tensor=2, sequence_parallel=True)
    for schedule in ("1f1b", "interleaved", "zbv")
}
CASES["tensor ranks, whole"] = steps("1f1b", 4, tensor=2)
# Scalars of an activation get gradients in the weight passes, once per recomputed layer.
SLICED = Layout(tensor=2, sequence_parallel=True, recompute="selective")
TRAINED = PARTS._replace(mlp=XIELU)
CASES |= {
    "trained activation, zero_bubble": steps("zero_bubble", 4, parts=TRAINED)._replace(
        tolerance=TENSOR_TOLERANCE
    ),
    "trained activation, recomputed": Steps(TRAINED, SLICED, [4], False, TENSOR_TOLERANCE),
    "no stages": Steps(DROPS, Layout(shard=2, zero=3), [2, 3], True),
    "no stages, recomputed": Steps(
        DROPS, Layout(shard=2, zero=3, recompute="selective", recompute_every=2), [2, 3], True
    ),
    "compiled, zero_bubble": steps("zero_bubble", 4, evaluates=True, compile="layers"),
    "compiled, dualpipev": steps("dualpipev", 4, evaluates=True, compile="layers"),
    "compiled slices": Steps(
        PARTS, SLICED._replace(compile="layers"), [2], False, TENSOR_TOLERANCE
    ),
}


@pytest.mark.quick(
    *("growing batch, 1f1b", "zero 2, zero_bubble", "evaluation between, 1f1b"),
    *("recomputed, interleaved", "drops, zbv", "data ranks, 1f1b", "tensor ranks, interleaved"),
    *("trained activation, zero_bubble", "no stages, recomputed"),
)
@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_what_one_process_does(run_layout: Callable[..., Any], case: str) -> None:
    parts, layout, counts, evaluates, tolerance = CASES[case]
    found: list[Found] = run_layout(run_steps, parts, layout, counts, evaluates)
    for rank in found:
        assert rank.loss < tolerance
        assert rank.gradient < tolerance
        assert rank.losses in {0, sum(counts)}
    assert any(rank.losses for rank in found)
    names = set.union(*(rank.parameters for rank in found))
    assert {f"layers.{index}.mlp.down.weight" for index in range(5)} <= names
    assert {"embedding.weight", "positions.weight", "final_norm.bias"} <= names


@pytest.mark.parametrize("schedule", sorted(SPLIT_SCHEDULES))
@pytest.mark.parametrize("version", ["2.10.0a0+git449b176", "2.11.0+cu130", "2.12.1"])
def test_split_backward_passes_are_refused_on_releases_with_the_bug(
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
def test_later_releases_support_every_schedule(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    for schedule in SCHEDULES:
        check_schedule(schedule)
