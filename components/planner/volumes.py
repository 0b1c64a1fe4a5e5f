"""Bytes that a rank sends in a step, by axis, and its FLOPs: what seconds are made of."""

from components.planner.communication import group_of
from components.planner.exchanges import (
    EXPERT_COLLECTIVES,
    context_bytes,
    expert_bytes,
    tensor_bytes,
)
from components.planner.job import BYTES, Job
from components.planner.parameters import rank_parameters
from components.planner.products import head_product, layer_products
from components.planner.software import SoftwareSpeed
from components.planner.time import again_fraction, reduced_bytes


def sent_bytes(job: Job, rank: int, speed: SoftwareSpeed) -> dict[str, float]:
    """Count them for one pipeline rank."""
    layout, again = job.layout, again_fraction(job)
    passed = _layers(job, rank) * job.microbatches
    tensor = speed.tensor_collectives * (1 + again[0] / 3) * tensor_bytes(job)
    sent = {
        "tensor": passed * tensor if layout.tensor > 1 else 0.0,
        "expert": passed * EXPERT_COLLECTIVES * expert_bytes(job),
        "context": passed * (2 + again[1]) * context_bytes(job),
        "pipeline": _between_stages(job, rank),
        "data": _data_bytes(job, rank),
    }
    return {axis: count for axis, count in sent.items() if count}


def step_flops(job: Job, rank: int) -> float:
    """Count the matrix products of one rank, attention in full, with what is computed twice.

    The plan's formula of a layer (`components.planner.products`) forward once and backward
    twice, as in `components.spec.derived.FlopsPerToken`, of which it is a rank's part.
    """
    layout, again = job.layout, again_fraction(job)
    products = sum(product.flops for product in layer_products(job))
    attention = job.shape.attention
    width = attention.num_heads * attention.head_dim / layout.tensor
    core = 4.0 * width * job.sequence_length * job.microbatch_tokens
    layers = _layers(job, rank) * ((3 + again[0]) * products + (3 + again[1]) * core)
    head = layout.head_stage % layout.pipeline == rank
    return job.microbatches * (layers + 3 * head * head_product(job).flops)


def _between_stages(job: Job, rank: int) -> float:
    """Count hidden states to the stage after and their gradients to the one before.

    Where the ends are tied, each also sends the other the gradient of the embedding, of which
    a rank has its shard by then.
    """
    layout, stages = job.layout, len(job.layout.layers)
    here = range(rank, stages, layout.pipeline)
    messages = sum((stage > 0) + (stage < stages - 1) for stage in here)
    hidden = job.microbatch_tokens * job.shape.dim * BYTES[job.compute]
    hidden /= layout.tensor if layout.sequence_parallel else 1
    sent = job.microbatches * messages * hidden
    if job.shape.tied_embeddings and stages > 1 and ({0, stages - 1} & set(here)):
        rows = job.shape.padded_vocab_size / layout.tensor
        shards = layout.data_shard * layout.context if layout.zero else 1
        sent += rows * job.shape.dim * job.gradient_bytes / shards
    return sent if layout.pipeline > 1 else 0.0


def _layers(job: Job, rank: int) -> int:
    return sum(job.layout.layers[rank :: job.layout.pipeline])


def _data_bytes(job: Job, rank: int) -> float:
    held = rank_parameters(job, rank)
    dense, experts = group_of(job.layout, "dense").size, group_of(job.layout, "data").size
    return reduced_bytes(job, held.dense, dense) + reduced_bytes(job, held.expert, experts)
