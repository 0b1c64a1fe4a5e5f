"""The global norm of the gradients, over all axes, and clipping by it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from components.parallelism.shards import WeightShard
from components.torch_internals.operators import divide_, multiply_, norms


def squared_norm(shards: Sequence[WeightShard]) -> Tensor:
    """Take this rank's share of the squared norm over all weights of all ranks, in float64.

    Summed over all ranks it counts each element once: each share is divided by the number of
    ranks that hold the same rows. A weight tied over two stages counts once.
    """
    gradients = _gradients(shards)
    squares = torch.stack([norm.double().square() for norm in norms(gradients)])
    replicas = torch.tensor([shard.replicas for shard in shards], dtype=torch.float64)
    return (squares / replicas.to(squares.device)).sum()


def clip(shards: Sequence[WeightShard], norm: Tensor, limit: float) -> None:
    """Scale all gradients down so that a ``norm`` above ``limit`` becomes ``limit``.

    The small constant is that of ``torch.nn.utils.clip_grad_norm_``.
    """
    if limit < math.inf:
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        gradients = _gradients(shards)
        multiply_(gradients, factor.to(gradients[0].dtype))


def unscale(shards: Sequence[WeightShard], scale: float) -> None:
    """Take a loss scale out of all gradients."""
    divide_(_gradients(shards), scale)


def _gradients(shards: Sequence[WeightShard]) -> list[Tensor]:
    gradients = [shard.parameter.grad for shard in shards]
    assert all(gradient is not None for gradient in gradients), "reduce first"
    return [gradient for gradient in gradients if gradient is not None]
