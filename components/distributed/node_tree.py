"""Node tree: collectives of objects in two levels, within a node and among nodes' leaders.

Gloo connects each rank of a group to all others: with 3,072 ranks, 3,071 sockets per process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch.distributed as dist

from components.torch_internals.distributed import group_of_members

T = TypeVar("T")


@dataclass(frozen=True)
class NodeTree:
    """Process groups for collectives of host objects; all ranks call every method.

    ``within`` has the consecutive ranks of a node; the first is the leader. ``among`` has all
    leaders. It is None on other ranks, and if there is only one node.
    """

    within: dist.ProcessGroup
    among: dist.ProcessGroup | None = None

    @property
    def global_rank(self) -> int:
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        return dist.get_world_size()

    def gather_objects(self, mine: T) -> list[T] | None:
        """Return all ranks' objects in rank order on the first rank, None on the others."""
        objects = _gather(mine, self.within)
        if self.among is not None:
            nodes = _gather(objects, self.among)
            objects = None if nodes is None else _joined(nodes)
        return objects if self.global_rank == 0 else None

    def all_gather(self, mine: T) -> list[T]:
        """Return all ranks' objects in rank order, on every rank."""
        objects = _gather(mine, self.within)
        if self.among is not None:
            nodes = [objects] * dist.get_world_size(self.among)
            dist.all_gather_object(nodes, objects, self.among)
            objects = _joined(nodes)
        received = [objects]
        dist.broadcast_object_list(received, group=self.within, group_src=0)
        return cast("list[T]", received[0])

    def scatter_objects(self, parts: Sequence[T] | None) -> T:
        """Send each rank its part, in rank order; only the first rank has ``parts``."""
        if self.among is None:
            return _scatter(parts, self.within)
        ranks = dist.get_world_size(self.within)
        nodes: list[Sequence[T]] | None = None
        if parts is not None:
            nodes = [parts[at : at + ranks] for at in range(0, self.world_size, ranks)]
        of_node = _scatter(nodes, self.among)
        return _scatter(of_node, self.within)


def make_node_tree(*, ranks_per_node: int, timeout: timedelta) -> NodeTree:
    """Connect all ranks by gloo, with ``ranks_per_node`` consecutive ranks on each node."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert ranks % ranks_per_node == 0, "each node has as many ranks"
    first = rank - rank % ranks_per_node

    within = group_of_members(range(first, first + ranks_per_node), timeout)
    leads_one_of_several = rank == first and ranks > ranks_per_node
    leaders = range(0, ranks, ranks_per_node)
    return NodeTree(
        within, group_of_members(leaders, timeout) if leads_one_of_several else None
    )


def _joined(nodes: Sequence[list[T] | None]) -> list[T]:
    return [item for of_node in nodes for item in of_node or ()]


def _gather(mine: T, group: dist.ProcessGroup) -> list[T] | None:
    """Collect a group's objects on its first rank."""
    objects = [mine] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(mine, objects, group=group, group_dst=0)
    return objects


def _scatter(parts: Sequence[T] | None, group: dist.ProcessGroup) -> T:
    """Scatter objects from a group's first rank."""
    received: list[T] = [None]  # type: ignore[list-item]  # until it is received
    sent = list(parts) if parts is not None and dist.get_rank(group) == 0 else None
    dist.scatter_object_list(received, sent, group=group, group_src=0)
    return received[0]
