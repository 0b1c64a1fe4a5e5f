"""Starting weights for a rank that holds only parts of them, equal to those of the whole."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from components.model.decoder import Decoder
from components.model.initialization import draw_rows, initial_stds
from components.parallelism.shards import local
from components.torch_internals.distributed import StridedShard


@torch.no_grad()
def draw_weights(decoder: Decoder, *, seed: int) -> None:
    """Draw the values that `initialize` gives the whole model, where this rank holds them."""
    for name, weight, std in initial_stds(decoder):
        here = local(weight)
        if std is None:
            here.fill_(0.0 if name.endswith("bias") else 1.0)
        elif here.numel():
            rows, columns = held(weight, 0), held(weight, weight.dim() - 1)
            width = prod(weight.shape[1:-1])  # rows are counted over all but the last dimension
            drawn = draw_rows(
                name,
                weight.shape,
                first_row=int(rows[0]) * width,
                last_row=(int(rows[-1]) + 1) * width,
                seed=seed,
                std=std,
            )
            assert len(drawn) == len(rows) * width, "a rank's rows lie together"
            here.copy_(drawn[:, columns].view(here.shape))
    _zero_padding_row(decoder)


@torch.no_grad()
def copy_weights(decoder: Decoder, whole: Mapping[str, Tensor]) -> None:
    """Copy this rank's part of every weight from the ``whole`` ones, by name."""
    for name, weight in decoder.named_parameters():
        part = whole[name]
        for dim in range(weight.dim() if isinstance(weight, DTensor) else 0):
            part = part.index_select(dim, held(weight, dim))
        local(weight).copy_(part)


def held(weight: Tensor, dim: int) -> Tensor:
    """List which indices of one dimension lie on this rank.

    Torch is asked to part the indices as it parted the weight, strided shards included.
    """
    indices = torch.arange(weight.shape[dim])
    if not isinstance(weight, DTensor):
        return indices
    placements = [
        _along_first(placement) if _is_along(placement, dim, weight.dim()) else Replicate()
        for placement in weight.placements
    ]
    indices = indices.to(weight.device_mesh.device_type)
    parted = distribute_tensor(indices, weight.device_mesh, placements, src_data_rank=None)
    return parted.to_local().cpu()


def _is_along(placement: object, dim: int, dims: int) -> bool:
    return isinstance(placement, Shard | StridedShard) and placement.dim % dims == dim


def _along_first(placement: object) -> Shard | StridedShard:
    if isinstance(placement, StridedShard):
        return StridedShard(0, split_factor=placement.split_factor)
    return Shard(0)


def _zero_padding_row(decoder: Decoder) -> None:
    row = decoder.initialization.padding_row
    for module in decoder.modules():
        if row is not None and isinstance(module, nn.Embedding):
            local(module.weight)[held(module.weight, 0) == row] = 0.0
