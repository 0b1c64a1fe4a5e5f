"""Whole matrices from shards, for an optimizer that updates no part of a matrix by itself.

Every rank gathers each matrix, computes the update of all of it, and keeps its own part: exact
in any layout, at the price of a matrix's memory and of the same products on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from components.distributed.weight_shards import WeightShard, local, rows_of
from components.engine.parallelize import held


@dataclass(frozen=True, eq=False)
class GatheredMatrix:
    """A weight's matrices, ``shape``; this rank updates some of their rows and columns."""

    shard: WeightShard
    shape: torch.Size
    rows: Tensor
    columns: Tensor

    def gather(self, part: Tensor) -> Tensor:
        shard = self.shard
        if _whole_experts(shard):
            if shard.split:
                one = prod(self.shape[:-1]), self.shape[-1]
                spread = DTensor.from_local(
                    part,
                    shard.param_mesh.shard,
                    [Shard(0)],
                    run_check=False,
                    shape=torch.Size(one),
                    stride=(one[1], 1),
                )
                part = spread.full_tensor()
            return part.view(self.shape)
        whole = shard.whole(part)
        return (whole.full_tensor() if isinstance(whole, DTensor) else whole).view(self.shape)

    def own(self, whole: Tensor) -> Tensor:
        return rows_of(whole)[self.rows][:, self.columns]


def whole_matrices(shards: Sequence[WeightShard]) -> dict[nn.Parameter, GatheredMatrix]:
    """Find how the shards of weights of two and more dimensions make whole matrices."""
    return {one.parameter: _whole(one) for one in shards if one.weight.dim() > 1}


def _whole_experts(shard: WeightShard) -> bool:
    """Whether expert ranks have whole matrices of a stack, and other ranks no part of them."""
    weight = shard.weight
    return isinstance(weight, DTensor) and weight.device_mesh.mesh_dim_names == ("expert",)


def _whole(shard: WeightShard) -> GatheredMatrix:
    weight: Tensor = local(shard.weight) if _whole_experts(shard) else shard.weight
    numbers, columns = held(weight, 0), held(weight, weight.dim() - 1)
    width = prod(weight.shape[1:-1])  # rows are counted over all dimensions but the last
    rows = (numbers[:, None] * width + torch.arange(width)).flatten()
    device = shard.parameter.device
    rows, columns = shard.own_rows(rows).to(device), columns.to(device)
    return GatheredMatrix(shard, weight.shape, rows, columns)
