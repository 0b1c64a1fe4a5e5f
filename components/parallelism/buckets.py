"""Many tensors in one collective: rows of each, cut into equal pieces, side by side."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from components.parallelism.shards import WeightShard, local, rows_of

_BUCKET_ELEMENTS = 2**25  # what one collective carries, and how much memory packing takes


# Torch 2.13 gave both another name and warns of the old one, which is all that sites with older
# releases have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def buckets(shards: Sequence[WeightShard]) -> Iterator[Sequence[WeightShard]]:
    """Put neighbours together until a bucket is full; a larger weight is one of its own."""
    starts, held = [0], 0
    for index, shard in enumerate(shards):
        size = local(shard.weight).numel()
        if held and held + size > _BUCKET_ELEMENTS:
            starts.append(index)
            held = 0
        held += size
    return (shards[first:last] for first, last in pairwise([*starts, len(shards)]) if last)


def piece_lengths(bucket: Sequence[WeightShard], pieces: int) -> list[int]:
    """Count the rows of a piece of each weight; the last pieces may hold fewer."""
    return [-(-len(rows_of(local(shard.weight))) // pieces) for shard in bucket]


def pack(tensors: Sequence[Tensor], lengths: Sequence[int], pieces: int) -> list[Tensor]:
    """Lay rows out as (pieces, columns of all tensors), rows that are missing as zeros."""
    rows = [tensor.reshape(len(tensor), _width(tensor)) for tensor in tensors]
    return [
        F.pad(tensor, (0, 0, 0, pieces * length - len(tensor))).view(pieces, -1)
        for tensor, length in zip(rows, lengths, strict=True)
    ]


def unpack(packed: Tensor, like: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """Take each tensor's rows out of ``packed``, (pieces, columns of all tensors)."""
    widths = [length * _width(tensor) for tensor, length in zip(like, lengths, strict=True)]
    return [
        part.reshape(-1, *tensor.shape[1:])[: len(tensor)]
        for part, tensor in zip(torch.split(packed, widths, dim=1), like, strict=True)
    ]


def _width(tensor: Tensor) -> int:
    """Count the numbers in a row, also where a rank has no row of a weight."""
    return prod(tensor.shape[1:])
