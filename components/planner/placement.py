"""Where the ranks of the first copy of the model lie: nodes, devices, coordinates.

Ranks fill nodes in their order. A rank's coordinates are the digits of its number in the mixed
base of the degrees, the first axis of ``rank_order`` being the slowest, as the device mesh
deals them.
"""

from dataclasses import dataclass

from components.planner.job import ParallelLayout

AXES = ("data", "tensor", "pipeline", "expert", "context")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One rank; ``first_copy`` holds of those with the data coordinate 0."""

    rank: int
    coordinates: dict[str, int]

    @property
    def first_copy(self) -> bool:
        return self.coordinates["data"] == 0


@dataclass(frozen=True, kw_only=True)
class Node:
    """The devices of one node, by its number."""

    number: int
    devices: tuple[Device, ...]


def coordinates(layout: ParallelLayout, rank: int) -> dict[str, int]:
    """Return the place of a rank on each axis."""
    places = {}
    for axis in reversed(layout.rank_order):
        rank, places[axis] = divmod(rank, getattr(layout, axis))
    return {axis: places[axis] for axis in AXES}


def nodes_of_first_copy(layout: ParallelLayout) -> tuple[Node, ...]:
    """List the nodes that hold ranks of the first copy; other copies may share them."""
    per_node = layout.devices_per_node
    numbers = sorted({rank // per_node for rank in _first_copy(layout)})
    return tuple(
        Node(
            number=number,
            devices=tuple(
                Device(rank=rank, coordinates=coordinates(layout, rank))
                for rank in range(number * per_node, (number + 1) * per_node)
            ),
        )
        for number in numbers
    )


def _first_copy(layout: ParallelLayout) -> list[int]:
    """Go through one rank in as many as there are copies, instead of through all."""
    ranks = [0]
    stride = 1
    for axis in reversed(layout.rank_order):
        degree = getattr(layout, axis)
        if axis != "data":
            ranks = [rank + place * stride for place in range(degree) for rank in ranks]
        stride *= degree
    return ranks


def label(device: Device, layout: ParallelLayout, between: str) -> str:
    """Write the coordinates on the axes that the layout uses, by their first letters."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    return between.join(f"{axis[0]}{device.coordinates[axis]}" for axis in used) or "all"


def meaning(layout: ParallelLayout) -> str:
    """Say what the letters mean and how many of each there are."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    return ", ".join(f"{axis[0]} {axis} of {getattr(layout, axis):,}" for axis in used)
