"""Seconds of one held-out evaluation, as `components.train.callbacks.held_out` takes it.

Every source is read on its own: its windows in batches of a microbatch's sequences, which the
data ranks take in turns. Nothing is recomputed, kept or averaged.
"""

from math import ceil

from components.config.schema.cluster import Hardware
from components.planner.communication import context_seconds, expert_seconds, tensor_seconds
from components.planner.job import TrainingJob
from components.planner.products import (
    attention_seconds,
    head_product,
    head_traffic_seconds,
    layer_products,
    product_seconds,
    traffic_seconds,
)
from components.planner.software import SoftwareSpeed
from components.planner.time import host_seconds, reached_teraflops


def evaluation_seconds(
    job: TrainingJob,
    hardware: Hardware,
    speed: SoftwareSpeed,
    *,
    sources: int,
    windows_per_source: int,
) -> float:
    """Predict one evaluation; a source with less text has fewer windows than this counts."""
    layout = job.layout
    batches = ceil(windows_per_source / job.microbatch_sequences)
    turns = ceil(batches / (layout.data * layout.expert))
    stages = [forward_seconds(job, rank, hardware, speed) for rank in range(layout.pipeline)]
    # A rank with one stage takes its next turn while the ranks after it work on this one; with
    # several it waits until its last stage has been reached.
    overlaps = layout.stages_per_rank == 1
    further = max(stages) if overlaps else sum(stages)
    return sources * (sum(stages) + (turns - 1) * further)


def forward_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward through the stages of one rank.

    Of what a training step counts for both passes, memory traffic and the host's work are
    a third, collectives of tensor ranks a half.
    """
    layout = job.layout
    stages = range(rank, len(layout.layers), layout.pipeline)
    layers = sum(layout.layers[stage] for stage in stages)
    rate, units = reached_teraflops(job, hardware), hardware.compute_units
    products = layer_products(job)
    experts = product_seconds(products[2:], rate, speed, units)
    layer = (
        product_seconds(products, rate, speed, units)
        + attention_seconds(job, rate, hardware, speed)
        + traffic_seconds(job, hardware, speed) / 3
        + tensor_seconds(job, hardware, speed) / 2
        + expert_seconds(job, hardware, experts)
        + context_seconds(job, hardware)
    )
    device = layers * layer
    if layout.head_stage in stages:
        device += product_seconds((head_product(job),), rate, speed, units)
        device += head_traffic_seconds(job, hardware, speed) / 3
    messages = speed.message_seconds * len(stages) if layout.pipeline > 1 else 0.0
    return max(device, layers * host_seconds(job, speed) / 3) + messages
