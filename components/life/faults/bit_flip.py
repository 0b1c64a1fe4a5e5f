"""One bit of a weight changes while nobody looks, as memory without a check may let it."""

import torch
from torch.distributed.tensor import DTensor

from components.life.rehearsal import Reach
from components.spec.guard import BitFlip


@torch.no_grad()
def fire(fault: BitFlip, reach: Reach) -> None:
    """Flip a bit of the first number of the rank's first weight matrix."""
    weights = (weight for stage in reach.stages for weight in stage.parameters())
    matrix = next(weight for weight in weights if weight.dim() > 1)
    local = matrix.to_local() if isinstance(matrix, DTensor) else matrix
    bits = local.view(torch.int32).view(-1)[:1]
    bits ^= 1 << fault.bit if fault.bit < 31 else -(1 << 31)
