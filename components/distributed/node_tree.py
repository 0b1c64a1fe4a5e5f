"""Node tree: collectives of objects in two levels, within a node and among nodes' leaders.

Gloo connects every rank of a group with every other one: at 3,072 ranks that is 3,071 sockets a
process. Here a node's ranks know each other, and its first rank the first of other nodes.
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
    """All ranks, for objects on the host; every method is called by all of them.

    ``within`` has the ranks of a node, neighbours of whom the first leads. ``among`` has all
    leaders, on these alone; None elsewhere, and where one node has all ranks.
    """

    within: dist.ProcessGroup
    among: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def gather(self, mine: T) -> list[T] | None:
        """Return what all ranks gave, in their order, on the first rank alone."""
        found = _gather(mine, self.within)
        if self.among is not None:
            nodes = _gather(found, self.among)
            found = None if nodes is None else _joined(nodes)
        return found if self.rank == 0 else None

    def all_gather(self, mine: T) -> list[T]:
        """Return on all ranks what all of them gave, in their order."""
        found = _gather(mine, self.within)
        if self.among is not None:
            nodes = [found] * dist.get_world_size(self.among)
            dist.all_gather_object(nodes, found, self.among)
            found = _joined(nodes)
        received = [found]
        dist.broadcast_object_list(received, group=self.within, group_src=0)
        return cast("list[T]", received[0])

    def scatter(self, parts: Sequence[T] | None) -> T:
        """Give each rank its part, in their order; the first rank alone has them."""
        if self.among is None:
            return _scatter(parts, self.within)
        ranks = dist.get_world_size(self.within)
        nodes: list[Sequence[T]] | None = None
        if parts is not None:
            nodes = [parts[at : at + ranks] for at in range(0, self.size, ranks)]
        of_node = _scatter(nodes, self.among)
        return _scatter(of_node, self.within)


def make_node_tree(*, ranks_per_node: int, timeout: timedelta) -> NodeTree:
    """Connect all ranks, of which ``ranks_per_node`` neighbours are on a node, by gloo."""
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
    return [one for of_node in nodes for one in of_node or ()]


def _gather(mine: T, group: dist.ProcessGroup) -> list[T] | None:
    """Collect a group's objects on its first rank."""
    found = [mine] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(mine, found, group=group, group_dst=0)
    return found


def _scatter(parts: Sequence[T] | None, group: dist.ProcessGroup) -> T:
    """Deal what a group's first rank has."""
    received: list[T] = [None]  # type: ignore[list-item]  # until it is received
    given = list(parts) if parts is not None and dist.get_rank(group) == 0 else None
    dist.scatter_object_list(received, given, group=group, group_src=0)
    return received[0]
