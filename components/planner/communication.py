"""Seconds of collectives over the links of a profile.

A ring of n ranks moves (n - 1) / n of the whole past each for an all-gather or reduce-scatter,
and twice that for an all-reduce (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
algorithms", section 3); bus bandwidths are those of NCCL's tests, with this factor taken out.
"""

from dataclasses import dataclass
from math import ceil, exp, log

from components.errors import RecipeError
from components.planner.job import Layout
from components.spec.hardware import Hardware, Network

# Where a profile has the vendor's figure alone: what collectives of the H100 nodes reach of
# theirs, 436 of 450 and 250 of 450 GB/s inside, 341 of 400 across two.
ALL_REDUCE_FRACTION, ALL_GATHER_FRACTION, ACROSS_FRACTION = 0.97, 0.56, 0.85


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that talk: how many, on how many nodes, how many of them on each."""

    size: int
    nodes: int
    on_node: int


def group_of(layout: Layout, axis: str) -> Group:
    """Find where the ranks of one axis lie; ``dense`` is data, expert and context together."""
    order = layout.rank_order
    names = ("data", "expert", "context") if axis == "dense" else (axis,)
    size = 1
    for name in names:
        size *= _degree(layout, name)
    fastest = max(order.index(name) for name in names)
    stride = 1
    for name in order[fastest + 1 :]:
        stride *= _degree(layout, name)
    return group(size, stride, layout.devices_per_node)


def group(size: int, stride: int, devices_per_node: int) -> Group:
    """Place ``size`` ranks, ``stride`` apart, on nodes."""
    if (size - 1) * stride < devices_per_node:
        return Group(size=size, nodes=1, on_node=size)
    on_node = min(size, max(1, devices_per_node // stride))
    return Group(size=size, nodes=ceil(size / on_node), on_node=on_node)


def _degree(layout: Layout, axis: str) -> int:
    return int(getattr(layout, axis))


def gather_bandwidth(hardware: Hardware, where: Group, devices_per_node: int) -> float:
    """Return bytes a second of an all-gather or reduce-scatter, past each rank."""
    inside, link = hardware.inside, hardware.inside.all_gather_gigabytes_per_second
    rate = link or ALL_GATHER_FRACTION * _peak(inside.peak_gigabytes_per_second, "inside")
    return _limited(rate, hardware.across, where, devices_per_node)


def reduce_bandwidth(hardware: Hardware, where: Group, devices_per_node: int) -> float:
    """Return bytes a second of an all-reduce, past each rank and twice over."""
    inside, link = hardware.inside, hardware.inside.all_reduce_gigabytes_per_second
    rate = link or ALL_REDUCE_FRACTION * _peak(inside.peak_gigabytes_per_second, "inside")
    return _limited(rate, hardware.across, where, devices_per_node)


def _limited(inside: float, across: Network, where: Group, devices: int) -> float:
    """Give a group its share of the node's network: all groups of a node talk at once."""
    if where.nodes == 1:
        return inside * 1e9
    return min(inside, node_rate(across, where.nodes, devices) * where.on_node / devices) * 1e9


def node_rate(across: Network, nodes: int, devices_per_node: int) -> float:
    """Return GB/s out of a node, between the measured numbers of nodes by powers."""
    if not across.by_nodes:
        rate = across.all_reduce_gigabytes_per_second or ACROSS_FRACTION * _peak(
            across.peak_gigabytes_per_second, "across"
        )
        return rate * devices_per_node
    measured = sorted(across.by_nodes)
    nodes = min(max(nodes, measured[0][0]), measured[-1][0])
    after = next(i for i, (count, _) in enumerate(measured) if count >= nodes)
    high, top = measured[after]
    if high == nodes:
        return top
    low, bottom = measured[after - 1]
    part = log(nodes / low) / log(high / low)
    return exp(log(bottom) + part * log(top / bottom))


def _peak(rate: float | None, level: str) -> float:
    if rate is None:
        raise RecipeError(
            f"cluster.hardware.{level}.peak_gigabytes_per_second",
            "the profile has no bandwidth of this level, measured or stated",
            "measure it with nccl-tests (all_reduce_perf -b 256M -e 256M) or oneCCL's "
            "benchmark and set all_reduce_gigabytes_per_second to the bus bandwidth",
        )
    return rate


def ring_elements(kind: str, size: int, elements: float) -> float:
    """Count what each rank sends: 2 (n - 1) / n for an all-reduce, half of it otherwise."""
    return elements * (size - 1) / size * (2 if kind == "all_reduce" else 1)


def latency(hardware: Hardware, where: Group) -> float:
    """Return seconds that a collective takes whatever it carries; 0 where nobody measured."""
    if where.size == 1:
        return 0.0
    further = (where.nodes - 1) * (hardware.across.latency_seconds or 0.0)
    return (hardware.inside.latency_seconds or 0.0) + further
