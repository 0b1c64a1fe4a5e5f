"""Whole matrices from shards, for an optimizer that needs a whole matrix for its update.

Every rank computes the whole update and takes its part: exact in any layout, for the memory of
a matrix and the same products on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from components.distributed.weight_shards import WeightShard, get_local_part, rows_of
from components.engine.parallelize import list_local_indices


@dataclass(frozen=True, eq=False)
class GatheredMatrix:
    """A weight's matrices, ``shape``; this rank updates some of their rows and columns."""

    shard: WeightShard
    shape: torch.Size
    rows: Tensor
    columns: Tensor

    def gather_matrix(self, part: Tensor) -> Tensor:
        shard = self.shard
        if _whole_experts(shard):
            if shard.split:
                matrix_shape = prod(self.shape[:-1]), self.shape[-1]
                spread = DTensor.from_local(
                    part,
                    shard.param_mesh.shard,
                    [Shard(0)],
                    run_check=False,
                    shape=torch.Size(matrix_shape),
                    stride=(matrix_shape[1], 1),
                )
                part = spread.full_tensor()
            return part.view(self.shape)
        whole = shard.to_dtensor(part)
        return (whole.full_tensor() if isinstance(whole, DTensor) else whole).view(self.shape)

    def select_own_part(self, whole: Tensor) -> Tensor:
        return rows_of(whole)[self.rows][:, self.columns]


def gather_matrices(shards: Sequence[WeightShard]) -> dict[nn.Parameter, GatheredMatrix]:
    """Return the gathered matrix of each shard of a weight with two or more dimensions."""
    return {shard.parameter: _whole(shard) for shard in shards if shard.weight.dim() > 1}


def _whole_experts(shard: WeightShard) -> bool:
    """Return whether expert ranks have whole matrices of a stack."""
    weight = shard.weight
    return isinstance(weight, DTensor) and weight.device_mesh.mesh_dim_names == ("expert",)


def _whole(shard: WeightShard) -> GatheredMatrix:
    weight: Tensor = get_local_part(shard.weight) if _whole_experts(shard) else shard.weight
    numbers, columns = (
        list_local_indices(weight, 0),
        list_local_indices(weight, weight.dim() - 1),
    )
    width = prod(weight.shape[1:-1])  # rows are counted over all dimensions but the last
    rows = (numbers[:, None] * width + torch.arange(width)).flatten()
    device = shard.parameter.device
    rows, columns = shard.own_rows(rows).to(device), columns.to(device)
    return GatheredMatrix(shard, weight.shape, rows, columns)
