"""Communication time: collectives over the links of a profile, and the exchanges of a layer.

A ring of n ranks moves (n - 1) / n of the data past each rank for an all-gather or
reduce-scatter, and twice that for an all-reduce (Patarasuk and Yuan 2009, "Bandwidth optimal
all-reduce algorithms", section 3). Bus bandwidths are as in the NCCL tests, without this
factor. Computation hides no call of a layer, with two exceptions: tensor ranks expose only
``SoftwareSpeed.exposed_fraction``, and with ``expert_overlap`` some tokens travel while others
are computed. `components.planner.time` handles data ranks.
"""

from math import exp, log

from components.config.rank_groups import RankGroup
from components.config.schema.cluster import Hardware, Network, NetworkLink
from components.config.schema.sections import Axis
from components.errors import RecipeError
from components.planner.job import BYTES, TrainingJob
from components.planner.software import SoftwareSpeed

# Fractions of the vendor's bandwidth that collectives of the H100 nodes reach: 436 of 450 and
# 250 of 450 GB/s inside a node, 341 of 400 across two. Used if a profile only has the vendor's
# number.
ALL_REDUCE_FRACTION, ALL_GATHER_FRACTION, ACROSS_FRACTION = 0.97, 0.56, 0.85
EXPERT_COLLECTIVES = 4  # tokens and results, forward and backward


def gather_bandwidth(hardware: Hardware, where: RankGroup, devices_per_node: int) -> float:
    """Return the bandwidth of an all-gather or reduce-scatter, in bytes per second per rank."""
    inside = hardware.inside
    rate = inside.all_gather_gigabytes_per_second or ALL_GATHER_FRACTION * _peak(inside)
    return _limited(rate, hardware.across, where, devices_per_node)


def reduce_bandwidth(hardware: Hardware, where: RankGroup, devices_per_node: int) -> float:
    """Return the bandwidth of an all-reduce (data pass each rank twice), in bytes/s."""
    inside = hardware.inside
    rate = inside.all_reduce_gigabytes_per_second or ALL_REDUCE_FRACTION * _peak(inside)
    return _limited(rate, hardware.across, where, devices_per_node)


def _limited(inside: float, across: Network, where: RankGroup, devices: int) -> float:
    """Return a group's share of the node's network, which all groups of a node use at once."""
    if where.nodes == 1:
        return inside * 1e9
    return min(inside, node_rate(across, where.nodes, devices) * where.on_node / devices) * 1e9


def node_rate(across: Network, nodes: int, devices_per_node: int) -> float:
    """Return GB/s out of a node, with power-law interpolation between measured node counts."""
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


def get_latency(hardware: Hardware, where: RankGroup) -> float:
    """Return the seconds that a collective takes at any size, or 0 if not measured."""
    if where.size == 1:
        return 0.0
    further = (where.nodes - 1) * (hardware.across.latency_seconds or 0.0)
    return (hardware.inside.latency_seconds or 0.0) + further


def tensor_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Return the seconds of tensor ranks to gather and scatter hidden states, in both passes.

    Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2.2) count four of each, half forward.
    """
    sent = speed.exposed_fraction * tensor_bytes(job)
    return speed.tensor_collectives * _gather_seconds(job, hardware, "tensor", sent)


def expert_seconds(job: TrainingJob, hardware: Hardware, computed: float) -> float:
    """Return the seconds that expert communication adds to one pass, forward or backward.

    ``computed`` are the experts' seconds. With ``expert_overlap`` parts, the longest of three
    counts: (1) the first part's transfer, all computation, the last part's return; (2) all
    transfers to the experts, the last part's computation and return; (3) all transfers both
    ways.
    """
    parts = job.layout.expert_overlap
    one_way = _gather_seconds(job, hardware, "expert", expert_bytes(job), calls=parts)
    part_way, part_computed = one_way / parts, computed / parts
    return (
        max(2 * part_way + computed, one_way + part_computed + part_way, 2 * one_way) - computed
    )


def repeated_seconds(job: TrainingJob, hardware: Hardware, computed: float) -> float:
    """Return the seconds that communication adds to a recomputed pass of the experts.

    Tokens are sent again, but no results: the backward pass does not need them.
    """
    parts = job.layout.expert_overlap
    one_way = _gather_seconds(job, hardware, "expert", expert_bytes(job), calls=parts)
    return max(one_way / parts + computed, one_way + computed / parts) - computed


def context_seconds(job: TrainingJob, hardware: Hardware) -> float:
    """Return the seconds to gather a sequence's keys and values, or scatter their gradients.

    One call gathers both (`components.distributed.context`); a recomputed pass gathers again.
    """
    return _gather_seconds(job, hardware, "context", context_bytes(job))


def _gather_seconds(
    job: TrainingJob, hardware: Hardware, axis: Axis, sent: float, *, calls: int = 1
) -> float:
    """Return the seconds to send ``sent`` bytes in ``calls`` calls along an axis."""
    if getattr(job.layout, axis) == 1:
        return 0.0
    where = job.rank_groups.find_group(axis)
    rate = gather_bandwidth(hardware, where, job.devices_per_node)
    return sent / rate + calls * get_latency(hardware, where)


def tensor_bytes(job: TrainingJob) -> float:
    """Count the bytes that a tensor rank sends to gather or scatter hidden states once.

    A layer has two parts with such collectives, or as many as its pattern lists.
    """
    ranks, parts = job.layout.tensor, sum(map(len, job.shape.layer_type.branches))
    return parts * job.microbatch_tokens * job.shape.dim * (ranks - 1) / ranks


def expert_bytes(job: TrainingJob) -> float:
    """Count the bytes that an expert rank sends to move tokens or results once."""
    sent, ranks = 2.0 * job.microbatch_tokens * job.shape.dim, job.layout.expert
    if job.layout.expert_dispatch == "all_to_all":
        sent *= (job.shape.mlp.top_k or 1) * job.expert_padding / ranks
    return sent * (ranks - 1)


def context_bytes(job: TrainingJob) -> float:
    """Count the bytes that a context rank sends to gather keys and values once."""
    return (job.layout.context - 1) * key_value_bytes(job)


def key_value_bytes(job: TrainingJob) -> float:
    """Count the bytes of one context rank's keys and values, per microbatch and layer."""
    attention = job.shape.attention
    heads = max(attention.num_kv_heads / job.layout.tensor, 1.0)
    both = heads * (attention.head_dim + attention.value_width)
    return both * job.microbatch_tokens * BYTES[job.compute]
