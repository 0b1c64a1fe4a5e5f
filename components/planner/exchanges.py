"""Seconds that one microbatch's ranks spend on each other's data, in one layer.

The calls block: nothing of them is hidden behind computation but what
``SoftwareSpeed.exposed_fraction`` says of tensor ranks, and of experts what ``expert_overlap``
lets travel while other tokens are computed.
"""

from components.planner.communication import gather_bandwidth, group_of, latency
from components.planner.job import BYTES, Job
from components.planner.software import SoftwareSpeed
from components.spec.hardware import Hardware

EXPERT_COLLECTIVES = 4  # tokens and results, forward and backward


def tensor_seconds(job: Job, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Gather and scatter hidden states, forward and backward.

    Four of each in Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2.2), half of them
    forward.
    """
    layout = job.layout
    if layout.tensor == 1:
        return 0.0
    where = group_of(layout, "tensor")
    rate = gather_bandwidth(hardware, where, layout.devices_per_node)
    each = speed.exposed_fraction * tensor_bytes(job) / rate + latency(hardware, where)
    return speed.tensor_collectives * each


def expert_seconds(job: Job, hardware: Hardware, computed: float) -> float:
    """Return what a pass in which experts compute for so long takes longer, forward or back.

    Tokens are gathered for the experts and their results scattered. In parts the pass takes as
    long as the longest of three: the first part's way there, all computation and the last
    part's way back; all ways there, the last part's computation and its way back; all ways.
    """
    layout = job.layout
    if layout.expert == 1:
        return 0.0
    where, parts = group_of(layout, "expert"), layout.expert_overlap
    rate = gather_bandwidth(hardware, where, layout.devices_per_node)
    way = expert_bytes(job) / rate + parts * latency(hardware, where)
    one, of_one = way / parts, computed / parts
    return max(2 * one + computed, way + of_one + one, 2 * way) - computed


def context_seconds(job: Job, hardware: Hardware) -> float:
    """Gather the keys and values of a sequence once, or scatter their gradients once.

    `components.parallelism.context` gathers both in one call before attention; its backward
    pass adds up gradients of the whole sequence and leaves each rank its part. A pass that is
    computed twice gathers twice.
    """
    layout = job.layout
    if layout.context == 1:
        return 0.0
    where = group_of(layout, "context")
    rate = gather_bandwidth(hardware, where, layout.devices_per_node)
    return context_bytes(job) / rate + latency(hardware, where)


def tensor_bytes(job: Job) -> float:
    """Count what a tensor rank sends when it gathers or scatters hidden states once."""
    ranks = job.layout.tensor
    return 2.0 * job.microbatch_tokens * job.shape.dim * (ranks - 1) / ranks


def expert_bytes(job: Job) -> float:
    """Count what an expert rank sends when it gathers tokens or scatters results once."""
    return 2.0 * job.microbatch_tokens * job.shape.dim * (job.layout.expert - 1)


def context_bytes(job: Job) -> float:
    """Count what a context rank sends when it gathers keys and values once."""
    return (job.layout.context - 1) * key_value_bytes(job)


def key_value_bytes(job: Job) -> float:
    """Count the keys and values of one context rank's part of a microbatch, in one layer.

    Where there are fewer key/value heads than tensor ranks, ranks hold copies.
    """
    attention = job.shape.attention
    heads = max(attention.num_kv_heads / job.layout.tensor, 1.0)
    return 2 * heads * attention.head_dim * job.microbatch_tokens * BYTES[job.compute]
