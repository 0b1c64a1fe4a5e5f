"""Seconds of collectives over the links of a profile, and of a layer's exchanges.

A ring of n ranks moves (n - 1) / n of the whole past each for an all-gather or reduce-scatter,
and twice that for an all-reduce (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
algorithms", section 3); bus bandwidths are those of NCCL's tests, with this factor taken out.

The calls of a layer block: nothing of them is hidden behind computation but what
``SoftwareSpeed.exposed_fraction`` says of tensor ranks, and of experts what ``expert_overlap``
lets travel while other tokens are computed. Data ranks' are in `components.planner.time`.
"""

from math import exp, log

from components.config.rank_groups import RankGroup
from components.config.schema.cluster import Hardware, Network, NetworkLink
from components.config.schema.sections import Axis
from components.errors import RecipeError
from components.planner.job import BYTES, TrainingJob
from components.planner.software import SoftwareSpeed

# Where a profile has the vendor's figure alone: what collectives of the H100 nodes reach of
# theirs, 436 of 450 and 250 of 450 GB/s inside, 341 of 400 across two.
ALL_REDUCE_FRACTION, ALL_GATHER_FRACTION, ACROSS_FRACTION = 0.97, 0.56, 0.85
EXPERT_COLLECTIVES = 4  # tokens and results, forward and backward


def gather_bandwidth(hardware: Hardware, where: RankGroup, devices_per_node: int) -> float:
    """Return bytes a second of an all-gather or reduce-scatter, past each rank."""
    inside = hardware.inside
    rate = inside.all_gather_gigabytes_per_second or ALL_GATHER_FRACTION * _peak(inside)
    return _limited(rate, hardware.across, where, devices_per_node)


def reduce_bandwidth(hardware: Hardware, where: RankGroup, devices_per_node: int) -> float:
    """Return bytes a second of an all-reduce, past each rank and twice over."""
    inside = hardware.inside
    rate = inside.all_reduce_gigabytes_per_second or ALL_REDUCE_FRACTION * _peak(inside)
    return _limited(rate, hardware.across, where, devices_per_node)


def _limited(inside: float, across: Network, where: RankGroup, devices: int) -> float:
    """Give a group its share of the node's network: all groups of a node talk at once."""
    if where.nodes == 1:
        return inside * 1e9
    return min(inside, node_rate(across, where.nodes, devices) * where.on_node / devices) * 1e9


def node_rate(across: Network, nodes: int, devices_per_node: int) -> float:
    """Return GB/s out of a node, between the measured numbers of nodes by powers."""
    if not across.by_nodes:
        rate = across.all_reduce_gigabytes_per_second or ACROSS_FRACTION * _peak(across)
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


def _peak(link: NetworkLink) -> float:
    if link.peak_gigabytes_per_second is None:
        across = isinstance(link, Network)
        level, place = ("across", "between nodes") if across else ("inside", "inside a node")
        raise RecipeError(
            f"cluster.hardware.{level}.peak_gigabytes_per_second",
            f"the profile has no bandwidth {place}, measured or stated",
            "measure it with nccl-tests (all_reduce_perf -b 256M -e 256M) or oneCCL's "
            "benchmark and set all_reduce_gigabytes_per_second to the bus bandwidth",
        )
    return link.peak_gigabytes_per_second


def latency(hardware: Hardware, where: RankGroup) -> float:
    """Return seconds that a collective takes whatever it carries; 0 where nobody measured."""
    if where.size == 1:
        return 0.0
    further = (where.nodes - 1) * (hardware.across.latency_seconds or 0.0)
    return (hardware.inside.latency_seconds or 0.0) + further


def tensor_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Gather and scatter hidden states, forward and backward.

    Four of each in Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2.2), half of them
    forward.
    """
    sent = speed.exposed_fraction * tensor_bytes(job)
    return speed.tensor_collectives * _gather_seconds(job, hardware, "tensor", sent)


def expert_seconds(job: TrainingJob, hardware: Hardware, computed: float) -> float:
    """Return what a pass in which experts compute for so long takes longer, forward or back.

    Tokens are gathered for the experts and their results scattered. In parts the pass takes as
    long as the longest of three: the first part's way there, all computation and the last
    part's way back; all ways there, the last part's computation and its way back; all ways.
    """
    parts = job.layout.expert_overlap
    way = _gather_seconds(job, hardware, "expert", expert_bytes(job), calls=parts)
    one, of_one = way / parts, computed / parts
    return max(2 * one + computed, way + of_one + one, 2 * way) - computed


def repeated_seconds(job: TrainingJob, hardware: Hardware, computed: float) -> float:
    """Return what a repeated pass of the experts takes longer: tokens go once more.

    Their results do not come back: a repetition ends with what the backward pass needs.
    """
    parts = job.layout.expert_overlap
    way = _gather_seconds(job, hardware, "expert", expert_bytes(job), calls=parts)
    return max(way / parts + computed, way + computed / parts) - computed


def context_seconds(job: TrainingJob, hardware: Hardware) -> float:
    """Gather the keys and values of a sequence once, or scatter their gradients once.

    `components.distributed.context` gathers both in one call before attention; its backward
    pass adds up gradients of the whole sequence and leaves each rank its part. A pass that is
    computed twice gathers twice.
    """
    return _gather_seconds(job, hardware, "context", context_bytes(job))


def _gather_seconds(
    job: TrainingJob, hardware: Hardware, axis: Axis, sent: float, *, calls: int = 1
) -> float:
    """Send so much, in so many calls, to the other ranks of an axis, if there are any."""
    if getattr(job.layout, axis) == 1:
        return 0.0
    where = job.groups.along(axis)
    rate = gather_bandwidth(hardware, where, job.devices_per_node)
    return sent / rate + calls * latency(hardware, where)


def tensor_bytes(job: TrainingJob) -> float:
    """Count what a tensor rank sends when it gathers or scatters hidden states once."""
    ranks = job.layout.tensor
    return 2.0 * job.microbatch_tokens * job.shape.dim * (ranks - 1) / ranks


def expert_bytes(job: TrainingJob) -> float:
    """Count what an expert rank sends when tokens go to experts, or results come back, once."""
    sent, ranks = 2.0 * job.microbatch_tokens * job.shape.dim, job.layout.expert
    if job.layout.expert_dispatch == "all_to_all":
        sent *= (job.shape.mlp.top_k or 1) * job.expert_padding / ranks
    return sent * (ranks - 1)


def context_bytes(job: TrainingJob) -> float:
    """Count what a context rank sends when it gathers keys and values once."""
    return (job.layout.context - 1) * key_value_bytes(job)


def key_value_bytes(job: TrainingJob) -> float:
    """Count the keys and values of one context rank's part of a microbatch, in one layer.

    Where there are fewer key/value heads than tensor ranks, ranks hold copies.
    """
    attention = job.shape.attention
    heads = max(attention.num_kv_heads / job.layout.tensor, 1.0)
    both = heads * (attention.head_dim + attention.values)
    return both * job.microbatch_tokens * BYTES[job.compute]
