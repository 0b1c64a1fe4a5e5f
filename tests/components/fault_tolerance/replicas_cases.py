"""A bit flips on one rank of a layout; what the ranks say of it."""

import torch

from components.distributed.weight_shards import get_local_part
from components.fault_tolerance.rank_health import ReplicaDifference, compare_replicas
from tests.components.distributed.layout_cases import Layout, ParallelModel
from tests.components.distributed.tensor_cases import Parts, randomized


def compared(
    parts: Parts, layout: Layout, flips: tuple[tuple[str, int], ...]
) -> list[ReplicaDifference]:
    """Flip the lowest bit of the last number of each named weight on its rank, then compare."""
    sharded = ParallelModel(randomized(parts), layout)
    for name, rank in flips:
        for shard in sharded.shards:
            if shard.name == name and torch.distributed.get_rank() == rank:
                bits = get_local_part(shard.weight).view(-1)[-1:].view(torch.int64)
                bits ^= 1
    return compare_replicas(sharded.shards, sharded.mesh)
