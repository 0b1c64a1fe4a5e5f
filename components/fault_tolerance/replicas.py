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
from torch.distributed.tensor import DTensor, Replicate

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

    Over the ranks of a family where every rank has the whole weight, over those with the same
    rows where the engine divides them; over tensor ranks what these do not divide.
    """
    if not shards:
        return []
    sums = torch.stack([bit_sum(local(shard.weight)) for shard in shards])
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for family in (mesh.dense, mesh.experts):
        mine = [place for place, shard in enumerate(shards) if shard.family is family]
        whole = [place for place in mine if not _is_divided(shards[place], family.pieces)]
        divided = [place for place in mine if place not in set(whole)]
        for places, group in ((whole, family.copies), (divided, family.others)):
            found |= dict.fromkeys(_compare(shards, sums, places, group))
    tensor = mesh.axis("tensor")
    kept = [place for place, shard in enumerate(shards) if _is_replicated(shard, tensor)]
    found |= dict.fromkeys(_compare(shards, sums, kept, tensor))
    return [ReplicaDifference(weight=weight, ranks=ranks) for weight, ranks in found]


def _is_divided(shard: WeightShard, pieces: DeviceMesh) -> bool:
    """Whether the model's own weight, not what is updated of it, is in pieces: ZeRO 3."""
    weight = shard.weight
    names = set(pieces.mesh_dim_names or ())
    return (
        isinstance(weight, DTensor)
        and pieces.size() > 1
        and any(
            name in names and not isinstance(placement, Replicate)
            for name, placement in zip(
                weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True
            )
        )
    )


def _is_replicated(shard: WeightShard, tensor: DeviceMesh) -> bool:
    weight = shard.weight
    if not isinstance(weight, DTensor):
        return True
    placed = zip(weight.device_mesh.mesh_dim_names or (), weight.placements, strict=True)
    return all(name != "tensor" or placement.is_replicate() for name, placement in placed)


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
