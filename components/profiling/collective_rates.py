"""Measured rates of collectives inside a node and between nodes.

A rate is the bus bandwidth, while all groups of a node communicate at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from components.distributed.collectives import all_gather
from components.profiling.rates import bus_bandwidth, median_seconds

MeasuredCollective = Literal["all_reduce", "all_gather"]
NUMBER_BYTES = 4  # of one float32: an all-reduce of one number measures the latency


@dataclass(frozen=True, kw_only=True)
class CollectiveRate:
    """Seconds of one collective with a total message of ``bytes``, over ``ranks`` ranks."""

    collective: MeasuredCollective
    nodes: int
    ranks: int
    bytes: int
    seconds: float

    @property
    def gigabytes_per_second(self) -> float:
        """The bus bandwidth."""
        return bus_bandwidth(self.collective, self.ranks, self.bytes, self.seconds) / 1e9


def measure_collectives(
    device: torch.device, sizes: Sequence[int], *, per_node: int
) -> list[CollectiveRate]:
    """Measure groups inside each node, and groups of all ranks of 2, 4, 8, ... nodes.

    All ranks call this function. Only the first rank is in every group and gets every rate.
    """
    nodes = dist.get_world_size() // per_node
    groups = []
    for node in range(nodes if per_node > 1 else 0):
        ranks = range(node * per_node, (node + 1) * per_node)
        group = dist.new_group(list(ranks))
        groups += [(1, group)] if dist.get_rank() in ranks else []
    for count in (2**power for power in range(1, nodes.bit_length())):
        groups.append((count, dist.new_group(list(range(count * per_node)))))
    rates = []
    for count, group in groups:
        if dist.get_rank(group) >= 0:
            rates += list(_iter_rates(group, count, device, sizes))
        dist.barrier()  # ranks outside of the group wait
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    return rates


def _iter_rates(
    group: dist.ProcessGroup, nodes: int, device: torch.device, sizes: Sequence[int]
) -> Iterator[CollectiveRate]:
    ranks = dist.get_world_size(group)

    def measure(collective: MeasuredCollective, size: int) -> CollectiveRate:
        whole = torch.ones(max(1, size // NUMBER_BYTES // ranks * ranks), device=device)
        part = torch.ones(len(whole) // ranks, device=device)

        def call() -> object:
            if collective == "all_reduce":
                return dist.all_reduce(whole, group=group)
            return all_gather(whole, part, group=group)

        seconds = median_seconds(call, device)
        return CollectiveRate(
            collective=collective, nodes=nodes, ranks=ranks, bytes=size, seconds=seconds
        )

    yield measure("all_reduce", NUMBER_BYTES)
    for size in sizes:
        yield measure("all_reduce", size)
        yield measure("all_gather", size)
