"""The global norm and clipping of a layout, beside torch's on the whole."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from components.distributed.mesh import sum_over_ranks
from components.distributed.weight_shards import clip_gradients, squared_norm, unscale_gradients
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.tensor_cases import Parts, randomized


class Clipped(NamedTuple):
    """Relative differences of the norm, and of the gradients after clipping."""

    norm: float
    gradient: float


def norm_of(sharded: ParallelModel) -> Tensor:
    """Sum the shares of all ranks, as a step does."""
    return sum_over_ranks(squared_norm(sharded.shards)).sqrt()


def norm_and_clip(parts: Parts, layout: Layout, part_of_norm: float) -> Clipped:
    """Clip to a part of the norm, which torch takes over one process's gradients."""
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, rank) for rank in range(layout.data)]
    whole.backward(batches)
    sharded.backward(batches[sharded.mesh.data_rank])
    norm = norm_of(sharded)
    assert norm.dtype == torch.float64
    limit = part_of_norm * norm.item()
    expected = torch.nn.utils.clip_grad_norm_(whole.decoder.parameters(), limit)
    clip_gradients(sharded.shards, norm, limit)
    return Clipped(
        abs(norm - expected).item() / expected.item(),
        largest_difference(sharded.gradients(), whole.gradients()),
    )


def spoil_one(parts: Parts, layout: Layout, rank: int, value: float) -> float:
    """Return the norm where one number of one rank's gradients is no number."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    if torch.distributed.get_rank() == rank:
        gradient = sharded.shards[3].parameter.grad
        assert gradient is not None
        gradient.view(-1)[0] = value
    return norm_of(sharded).item()


def leave_alone(parts: Parts, layout: Layout) -> bool:
    """Say whether no limit, and a limit that no norm reaches, change no bit."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    before = sharded.gradients()
    for limit in (math.inf, 1e6):
        clip_gradients(sharded.shards, norm_of(sharded), limit)
    return all(torch.equal(before[name], after) for name, after in sharded.gradients().items())


def unscaled(parts: Parts, layout: Layout) -> bool:
    """Say whether a scale of a power of two is taken out without a trace."""
    sharded = ParallelModel(randomized(parts), layout)
    sharded.backward(batch_of(0, sharded.mesh.data_rank))
    before = sharded.gradients()
    unscale_gradients(sharded.shards, 2.0**16)
    after = sharded.gradients()
    return all(torch.equal(before[name], after[name] * 2.0**16) for name in before)
