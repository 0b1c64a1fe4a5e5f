"""The global norm and clipping of a layout, beside torch's on the whole."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from components.distributed.mesh import sum_over_ranks
from components.distributed.weight_shards import clip, squared_norm, unscale
from tests.components.distributed.layout_cases import (
    Layout,
    Poured,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.tensor_cases import Parts, randomized


class Clipped(NamedTuple):
    """Relative differences of the norm, and of the gradients after clipping."""

    norm: float
    gradient: float


def norm_of(poured: Poured) -> Tensor:
    """Sum the shares of all ranks, as a step does."""
    return sum_over_ranks(squared_norm(poured.shards)).sqrt()


def norm_and_clip(parts: Parts, layout: Layout, part_of_norm: float) -> Clipped:
    """Clip to a part of the norm, which torch takes over one process's gradients."""
    model = randomized(parts)
    whole, poured = Whole(model), Poured(model, layout)
    batches = [batch_of(0, rank) for rank in range(layout.data)]
    whole.backward(batches)
    poured.backward(batches[poured.mesh.data_rank])
    norm = norm_of(poured)
    assert norm.dtype == torch.float64
    limit = part_of_norm * norm.item()
    expected = torch.nn.utils.clip_grad_norm_(whole.decoder.parameters(), limit)
    clip(poured.shards, norm, limit)
    return Clipped(
        abs(norm - expected).item() / expected.item(),
        largest_difference(poured.gradients(), whole.gradients()),
    )


def spoil_one(parts: Parts, layout: Layout, rank: int, value: float) -> float:
    """Return the norm where one number of one rank's gradients is no number."""
    poured = Poured(randomized(parts), layout)
    poured.backward(batch_of(0, poured.mesh.data_rank))
    if torch.distributed.get_rank() == rank:
        gradient = poured.shards[3].parameter.grad
        assert gradient is not None
        gradient.view(-1)[0] = value
    return norm_of(poured).item()


def leave_alone(parts: Parts, layout: Layout) -> bool:
    """Say whether no limit, and a limit that no norm reaches, change no bit."""
    poured = Poured(randomized(parts), layout)
    poured.backward(batch_of(0, poured.mesh.data_rank))
    before = poured.gradients()
    for limit in (math.inf, 1e6):
        clip(poured.shards, norm_of(poured), limit)
    return all(torch.equal(before[name], after) for name, after in poured.gradients().items())


def unscaled(parts: Parts, layout: Layout) -> bool:
    """Say whether a scale of a power of two is taken out without a trace."""
    poured = Poured(randomized(parts), layout)
    poured.backward(batch_of(0, poured.mesh.data_rank))
    before = poured.gradients()
    unscale(poured.shards, 2.0**16)
    after = poured.gradients()
    return all(torch.equal(before[name], after[name] * 2.0**16) for name in before)
