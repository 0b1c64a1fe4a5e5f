"""Weights that several ranks hold are compared, for memory and arithmetic can err silently.

In BLOOM's training LayerNorm weights, which all tensor ranks hold, drifted apart unnoticed
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md).
Each rank adds up the bits of each of its weights as whole numbers, on its device; what ranks
must share must have equal sums.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from components.distributed.collectives import all_gather
from components.distributed.mesh import Mesh
from components.distributed.weight_shards import WeightShard, local

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicasDifferError(RuntimeError):
    """A rank has other weights than those that must have the same; a restart mends it."""


@dataclass(frozen=True)
class ReplicaDifference:
    """A weight that is not the same on all ranks that hold it; ``ranks`` are the fewer.

    Where no majority says who errs, of two above all, all of the ranks are named.
    """

    weight: str
    ranks: tuple[int, ...]


def bit_sum(tensor: Tensor) -> Tensor:
    """Add up a tensor's bits as whole numbers, an int64 scalar that wraps around.

    One flipped bit always changes it. Two changes that cancel each other out do not.
    """
    return tensor.contiguous().view(_BITS[tensor.element_size()]).sum(dtype=torch.int64)


def compare_replicas(shards: Sequence[WeightShard], mesh: Mesh) -> list[ReplicaDifference]:
    """Compare what ranks must share; all ranks call this, and those that share agree.

    Over all ranks that hold a weight where each has the whole of it, over those with the same
    rows where the engine divides them; over tensor ranks what these do not divide.
    """
    if not shards:
        return []
    sums = torch.stack([bit_sum(local(shard.weight)) for shard in shards])
    dividing = [_dividing_axes(shard) for shard in shards]
    found: list[ReplicaDifference] = []
    for param_mesh in (mesh.dense, mesh.experts):
        # Whether the model's own weight, not what is updated of it, is in pieces: ZeRO 3.
        pieces = param_mesh.shard
        axes = set(pieces.mesh_dim_names or ()) if pieces.size() > 1 else set()
        mine = [place for place, shard in enumerate(shards) if shard.param_mesh is param_mesh]
        whole = [place for place in mine if not axes & dividing[place]]
        divided = [place for place in mine if axes & dividing[place]]
        found += _compare(shards, sums, whole, param_mesh.grad_sync)
        found += _compare(shards, sums, divided, param_mesh.replicate)
    kept = [place for place, axes in enumerate(dividing) if "tensor" not in axes]
    found += _compare(shards, sums, kept, mesh.axis("tensor"))
    return list(dict.fromkeys(found))


def _dividing_axes(shard: WeightShard) -> set[str]:
    """Name the axes of the mesh over which the model's weight is in pieces."""
    weight = shard.weight
    if not isinstance(weight, DTensor):
        return set()
    named = zip(weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True)
    return {name for name, placement in named if not placement.is_replicate()}


def _compare(
    shards: Sequence[WeightShard], sums: Tensor, places: list[int], group: DeviceMesh
) -> list[ReplicaDifference]:
    """Gather the sums of one group, a whole number a weight and rank, and name who differs."""
    if group.size() == 1 or not places:
        return []
    mine = sums[places]
    everyones = mine.new_empty(group.size(), len(places))
    all_gather(everyones, mine[None], group=group.get_group())
    differ = (everyones != everyones[0]).any(dim=0)
    ranks = dist.get_process_group_ranks(group.get_group())
    found = []
    for column in differ.nonzero().flatten().tolist():
        rare = tuple(ranks[place] for place in minority(everyones[:, column].tolist()))
        found.append(ReplicaDifference(weight=shards[places[column]].name, ranks=rare))
    return found


def minority(values: Sequence[int]) -> list[int]:
    """Return the places of all values but the one that most have; all if there is no such."""
    (most, count), *others = Counter(values).most_common()
    tie = any(number == count for _, number in others)
    return [place for place, value in enumerate(values) if tie or value != most]
