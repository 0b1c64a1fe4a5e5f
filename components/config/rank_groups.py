"""Rank groups: coordinates of each rank, ranks along an axis, and their nodes.

Ranks fill nodes in the order of their numbers. The coordinates of a rank are the digits of its
number in the mixed radix of the degrees; the first axis of ``rank_order`` is the slowest.
"""

from dataclasses import dataclass
from math import ceil, prod
from typing import Literal, NamedTuple

from components.config.schema.sections import AXES, DENSE_AXES, Axis, Parallelism

# The device mesh splits the data axis into replicas of the model and shards of each replica.
_DATA_PARTS = ("data_replicate", "data_shard")
MESH_AXES = tuple(
    part for axis in AXES for part in (_DATA_PARTS if axis == "data" else (axis,))
)


def mesh_sizes(layout: Parallelism) -> dict[str, int]:
    """Return the degree of each axis of the device mesh, the slowest axis first.

    ``Parallelism.data_shard`` includes expert ranks, the mesh axis ``data_shard`` does not.
    """
    shard = max(1, layout.data_shard // layout.expert)
    sizes = dict[str, int]()
    for axis in layout.rank_order:
        if axis == "data":
            sizes |= zip(_DATA_PARTS, (layout.data // shard, shard), strict=True)
        else:
            sizes[axis] = getattr(layout, axis)
    return sizes


GroupAxis = Axis | Literal["dense"]  # all of `DENSE_AXES` together


class RankGroup(NamedTuple):
    """Group of communicating ranks: size, number of nodes, and ranks per node."""

    size: int
    nodes: int
    on_node: int


class Device(NamedTuple):
    """One rank; ``first_copy`` is true for ranks with the data coordinate 0."""

    rank: int
    coordinates: dict[Axis, int]

    @property
    def first_copy(self) -> bool:
        return self.coordinates["data"] == 0


class Node(NamedTuple):
    """The devices of one node, and the number of the node."""

    number: int
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class RankGroups:
    """The ranks of a layout on nodes of ``devices_per_node`` devices."""

    layout: Parallelism
    devices_per_node: int

    def compute_stride(self, axis: Axis) -> int:
        """Return the distance in ranks between neighbours on ``axis``."""
        order = self.layout.rank_order
        return prod(getattr(self.layout, name) for name in order[order.index(axis) + 1 :])

    def find_coordinates(self, rank: int) -> dict[Axis, int]:
        """Return the coordinate of a rank on each axis."""
        places = dict.fromkeys(AXES, 0)
        for axis in reversed(self.layout.rank_order):
            rank, places[axis] = divmod(rank, getattr(self.layout, axis))
        return places

    def find_group(self, axis: GroupAxis) -> RankGroup:
        """Return size, nodes and ranks per node of the groups along one axis."""
        axes = DENSE_AXES if axis == "dense" else (axis,)
        size = prod(getattr(self.layout, name) for name in axes)
        fastest = max(axes, key=self.layout.rank_order.index)
        return place_group(size, self.compute_stride(fastest), self.devices_per_node)

    def groups_over_nodes(self, axis: Axis) -> int:
        """Count the groups along ``axis`` with first and last rank on different nodes."""
        size, stride = getattr(self.layout, axis), self.compute_stride(axis)
        last, devices = (size - 1) * stride, self.devices_per_node
        return sum(
            first // devices != (first + last) // devices
            for block in range(0, self.layout.num_ranks, stride * size)
            for first in range(block, block + stride)
        )

    def first_copy_nodes(self) -> tuple[Node, ...]:
        """List the nodes that hold ranks of the first copy; other copies may share them."""
        ranks = [0]
        for axis in AXES:
            if axis != "data":
                degree, stride = getattr(self.layout, axis), self.compute_stride(axis)
                ranks = [rank + place * stride for place in range(degree) for rank in ranks]
        numbers = sorted({rank // self.devices_per_node for rank in ranks})
        return tuple(map(self._node, numbers))

    def _node(self, number: int) -> Node:
        first = number * self.devices_per_node
        ranks = range(first, first + self.devices_per_node)
        return Node(number, tuple(Device(rank, self.find_coordinates(rank)) for rank in ranks))

    def format_label(self, device: Device, separator: str) -> str:
        """Return the coordinates on axes with several ranks, with the axes' first letters."""
        used = self.layout.used_axes
        return separator.join(f"{axis[0]}{device.coordinates[axis]}" for axis in used) or "all"

    @property
    def label_legend(self) -> str:
        """Legend of the letters in labels, with the degree of each axis."""
        used = self.layout.used_axes.items()
        return ", ".join(f"{axis[0]} {axis} of {degree:,}" for axis, degree in used)


def place_group(size: int, stride: int, devices_per_node: int) -> RankGroup:
    """Place ``size`` ranks, ``stride`` apart, on nodes."""
    if (size - 1) * stride < devices_per_node:
        return RankGroup(size=size, nodes=1, on_node=size)
    on_node = min(size, max(1, devices_per_node // stride))
    return RankGroup(size=size, nodes=ceil(size / on_node), on_node=on_node)
