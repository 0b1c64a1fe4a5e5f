"""A pipeline's steps beside the same microbatches on one process."""

from collections.abc import Sequence
from typing import NamedTuple
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch import Tensor

from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.tensor_cases import Parts, randomized


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
