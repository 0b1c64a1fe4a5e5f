"""Weights that several ranks hold are compared, for memory and arithmetic can err silently.

In BLOOM's training LayerNorm weights, which all tensor ranks hold, drifted apart unnoticed
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md).
Each rank adds up the bits of each of its weights as whole numbers, on its device; what ranks
must share must have equal sums.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

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
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for param_mesh in (mesh.dense, mesh.experts):
        mine = [place for place, shard in enumerate(shards) if shard.param_mesh is param_mesh]
        whole = [place for place in mine if not _is_divided(shards[place], param_mesh.shard)]
        divided = [place for place in mine if place not in set(whole)]
        for places, group in ((whole, param_mesh.grad_sync), (divided, param_mesh.replicate)):
            found |= dict.fromkeys(_compare(shards, sums, places, group))
    tensor = mesh.axis("tensor")
    kept = [
        place
        for place, shard in enumerate(shards)
        if all(name != "tensor" or one.is_replicate() for name, one in _placements(shard))
    ]
    found |= dict.fromkeys(_compare(shards, sums, kept, tensor))
    return [ReplicaDifference(weight=weight, ranks=ranks) for weight, ranks in found]


def _is_divided(shard: WeightShard, pieces: DeviceMesh) -> bool:
    """Whether the model's own weight, not what is updated of it, is in pieces: ZeRO 3."""
    names = set(pieces.mesh_dim_names or ())
    return pieces.size() > 1 and any(
        name in names and not isinstance(placement, Replicate)
        for name, placement in _placements(shard)
    )


def _placements(shard: WeightShard) -> Iterator[tuple[str, Placement]]:
    """Yield each axis of a weight's mesh, and how the weight lies on it."""
    weight = shard.weight
    if isinstance(weight, DTensor):
        yield from zip(weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True)


def _compare(
    shards: Sequence[WeightShard], sums: Tensor, places: Sequence[int], group: DeviceMesh
) -> list[tuple[str, tuple[int, ...]]]:
    """Gather the sums of one group, a whole number a weight and rank, and name who differs."""
    if group.size() == 1 or not places:
        return []
    mine = sums[list(places)]
    everyones = mine.new_empty(group.size(), len(places))
    all_gather(everyones, mine[None], group=group.get_group())
    differ = (everyones != everyones[0]).any(dim=0)
    ranks = dist.get_process_group_ranks(group.get_group())
    found = []
    for column in differ.nonzero().flatten().tolist():
        rare = minority(everyones[:, column].tolist())
        found.append((shards[places[column]].name, tuple(ranks[place] for place in rare)))
    return found


def minority(values: Sequence[int]) -> list[int]:
    """Return the places of all values but the one that most have; all if there is no such."""
    (most, count), *others = Counter(values).most_common()
    tie = any(number == count for _, number in others)
    return [place for place, value in enumerate(values) if tie or value != most]
