"""A bit flips on one rank of a layout; what the ranks say of it."""

import torch

from components.life.replicas import Difference, compare_replicas
from components.parallelism.shards import local
from tests.components.parallelism.layout_cases import Layout, Poured
from tests.components.parallelism.tensor_cases import Parts, randomized


def compared(
    parts: Parts, layout: Layout, flips: tuple[tuple[str, int], ...]
) -> list[Difference]:
    """Flip the lowest bit of the last number of each named weight on its rank, then compare."""
    poured = Poured(randomized(parts), layout)
    for name, rank in flips:
        for shard in poured.shards:
            if shard.name == name and torch.distributed.get_rank() == rank:
                bits = local(shard.weight).view(-1)[-1:].view(torch.int64)
                bits ^= 1
    return compare_replicas(poured.shards, poured.mesh)
