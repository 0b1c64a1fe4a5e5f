"""Seconds of one optimizer step, by part and as a timeline, and of one evaluation.

Every microbatch takes the longer of what the device computes and what the host can start. The
slowest stage sets the pace of a pipeline; then gradients are averaged and weights updated.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

from components.config.rank_groups import GroupAxis
from components.config.schema.cluster import Hardware
from components.planner import communication
from components.planner.experts import repeats_experts, started_seconds, waits
from components.planner.job import TrainingJob
from components.planner.layer import head_seconds, layer_seconds
from components.planner.products import attention_products, layer_products
from components.planner.schedule import bubble_fraction, orders
from components.planner.software import SoftwareSpeed
from components.planner.states import (
    rank_parameters,
    shard_gradients,
    sharing_ranks,
    states,
)
from components.planner.timeline import PassSeconds, Timeline, simulate

BACKWARD = 2 / 3  # of a microbatch's passes


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step; ``microbatches`` are the busy part of the slowest rank."""

    microbatches: float
    bubble: float
    reduction: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.microbatches + self.bubble + self.reduction + self.optimizer

    def parts(self) -> dict[str, float]:
        return {f"{name}_seconds": value for name, value in asdict(self).items()}


def plan_time(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed, busy: Sequence[float] = ()
) -> StepTime:
    """Predict one step; ``busy`` are its `busy_seconds`, where they are known already.

    Raises:
        RecipeError: the profile lacks a figure that this needs.
    """
    busy = busy or busy_seconds(job, hardware, speed)
    microbatches, bubble = passes_seconds(job, busy)
    ends = {0, job.layout.pipeline - 1}  # a V's first rank has both
    return StepTime(
        microbatches=microbatches,
        bubble=bubble,
        reduction=max(_reduction_seconds(job, r, hardware, speed, busy[r]) for r in ends),
        optimizer=max(_optimizer_seconds(job, rank, hardware, speed) for rank in ends),
    )


def passes_seconds(job: TrainingJob, busy: Sequence[float]) -> tuple[float, float]:
    """Return how long the slowest rank computes in a step, and how long it waits."""
    layout, slowest = job.layout, max(busy)
    fraction = bubble_fraction(
        schedule=layout.schedule,
        pipeline=layout.pipeline,
        microbatches=job.microbatches,
        stages=job.placement.stages_per_rank,
        splits_backward=job.splits_backward,
    )
    # Filling and draining go through all ranks, the quicker ones too.
    others = (sum(busy) - slowest) / max(layout.pipeline - 1, 1)
    return slowest * job.microbatches, fraction * job.microbatches * others


def busy_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """List the seconds of one microbatch on each pipeline rank; most ranks are alike."""
    busy = [0.0] * job.layout.pipeline
    for ranks in job.equal_ranks:
        seconds = rank_seconds(job, ranks[0], hardware, speed)
        for rank in ranks:
            busy[rank] = seconds
    return busy


def rank_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward and backward through the stages of one rank."""
    layout = job.layout
    stages = job.stages_of(rank)
    host = sum(n * host_seconds(kind, speed) for kind, n, _ in job.layer_kinds(stages))
    device = sum(layers_parts(job, rank, hardware, speed).values())
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
        device += 3 * product + traffic
    messages = 2 * speed.message_seconds * len(stages) if layout.pipeline > 1 else 0.0
    return max(device, host) + messages


def host_seconds(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return what the host needs to start one layer, forward and backward."""
    if job.layout.tensor == 1:
        return speed.layer_seconds + started_seconds(job, speed)
    crosses = job.groups.along("pipeline").nodes > 1
    crossing = speed.crossing_layer_seconds * job.layout.tensor if crosses else 0.0
    return speed.tensor_layer_seconds + crossing


def layers_parts(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> dict[str, float]:
    """Name what the passes of all layers of one pipeline rank consist of, in seconds."""
    counted: list[tuple[TrainingJob, int]] = []
    for kind, layers, again in job.layer_kinds(job.stages_of(rank)):
        if job.layout.recompute == "none":
            counted.append((kind, layers))
        else:
            plain = kind.with_layout(recompute="none")
            counted += [(plain, layers - again), (kind, again)]
    parts = dict[str, float]()
    for one, count in counted:
        for name, seconds in layer_parts(one, hardware, speed).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
    return parts


def layer_parts(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> dict[str, float]:
    """Name what a layer's passes consist of, forward once and backward twice, in seconds.

    It is a layer that is recomputed, if the job recomputes any. A selective one repeats what
    moves memory alone, no product and no collective.
    """
    again, layer = recompute_fraction(job), layer_seconds(job, hardware, speed)
    waited, repeats = waits(job, hardware, speed, layer[1:3]), repeats_experts(job)
    moved = 1.0 if job.layout.recompute == "selective" else sum(again) / 2
    return {
        "products": layer.all_products + 3 * layer.attention,
        "recomputation": again[0] * layer.products + again[1] * layer.attention,
        "memory traffic": layer.traffic * (1 + moved / 3),
        "tensor collectives": (1 + again[0] / 3)
        * communication.tensor_seconds(job, hardware, speed),
        "expert collectives": communication.expert_seconds(job, hardware, layer.experts)
        + communication.expert_seconds(job, hardware, layer.experts_backward)
        + repeats * communication.repeated_seconds(job, hardware, layer.experts),
        "experts one by one": waited.both + repeats * waited.forward,
        "context collectives": communication.context_seconds(job, hardware) * (2 + again[1]),
    }


def recompute_fraction(job: TrainingJob) -> tuple[float, float]:
    """Return the parts of the forward products, and of attention, that are computed twice.

    They are those of a layer that is recomputed.
    """
    if job.layout.recompute in {"none", "selective"}:
        return 0.0, 0.0
    if job.layout.recompute == "full":
        return 1.0, 1.0
    total = sum(product.flops for product in layer_products(job))
    attention = sum(product.flops for product in attention_products(job)) / total
    has_attention, has_mlp = "attention" in job.layout.recompute, "mlp" in job.layout.recompute
    return has_attention * attention + has_mlp * (1 - attention), float(has_attention)


def _reduction_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed, microbatch: float
) -> float:
    """Average gradients, and gather weights under ZeRO (Rajbhandari et al. 2020, section 7).

    What passes hide is not counted (`_exposed`).
    """
    layout = job.layout
    where = job.groups.along("dense")
    reduced = gathered = 0.0
    for axis, scattered, spread in averaged_bytes(job, rank):
        ranks = job.groups.along(axis)
        rate = communication.reduce_bandwidth(hardware, ranks, job.devices_per_node)
        reduced += scattered / rate
        gathered += spread / rate
    reduced *= speed.reduced_fraction
    gathered *= speed.reduced_fraction
    if job.overlaps or layout.zero == 3:
        seconds = _exposed(job, rank, reduced, gathered, microbatch)
    else:
        hidden = (layout.zero == 0) * speed.hides_reduction * microbatch * BACKWARD
        seconds = max(reduced + gathered - hidden, 0.0)
    return seconds + speed.step_latencies * communication.latency(hardware, where)


def _exposed(
    job: TrainingJob, rank: int, reduced: float, gathered: float, microbatch: float
) -> float:
    """Return the seconds of a step's collectives of data ranks that no pass hides.

    A backward pass hides all but the last bucket of gradients: that of the last microbatch,
    under ZeRO 2 and 3 each one's. A forward pass hides all but the first bucket of weights; of
    ZeRO 3, whose buckets are layers, each pass hides gathers of its own.
    """
    layout, parameters = job.layout, rank_parameters(job, rank)
    numbers = parameters.dense + parameters.expert
    buckets = max(ceil(numbers / max(layout.bucket_elements, parameters.largest)), 1)
    forward, backward = (1 - BACKWARD) * microbatch, BACKWARD * microbatch
    if layout.zero == 3:
        parts = job.layers_of(rank) + 1
        reduced, once = reduced / job.microbatches, gathered / job.microbatches / 2
        each = max(once - forward, once / parts)
        each += max(once + reduced - backward, reduced / parts)
        return job.microbatches * each
    times = job.microbatches if layout.zero == 2 else 1
    left = times * max(reduced / times - backward, reduced / times / buckets)
    return left + max(gathered - forward, gathered / buckets)


def averaged_bytes(job: TrainingJob, rank: int) -> list[tuple[GroupAxis, float, float]]:
    """List by group of ranks what a step sends of gradients, and of weights.

    Where the optimizer is not expert-aware the replicas of each expert rank share the dense
    state too, and expert ranks add up their shards' gradients (`components.distributed.mesh`).
    """
    layout, parameters = job.layout, rank_parameters(job, rank)
    plain = layout.zero > 0 and layout.expert > 1 and not layout.expert_aware
    families: tuple[tuple[GroupAxis, float], ...] = (
        ("data" if plain else "dense", parameters.dense),
        ("data", parameters.expert),
    )
    sent = list[tuple[GroupAxis, float, float]]()
    for axis, count in families:
        size = job.groups.along(axis).size
        if count and size > 1:
            sizes = reduced_bytes(job, count, size), gathered_bytes(job, count, size)
            sent.append((axis, *sizes))
    if plain:
        times = 1 if layout.zero == 1 else job.microbatches
        shard = times * job.reduce_bytes * parameters.dense / sharing_ranks(layout)[0]
        sent.append(("expert", 2 * shard * (layout.expert - 1) / layout.expert, 0.0))
    return sent


def reduced_bytes(job: TrainingJob, parameters: float, size: int) -> float:
    """Scatter gradients, and without ZeRO gather them.

    From stage 2 on every microbatch's gradients are scattered (Rajbhandari et al. 2020, section
    7.2).
    """
    each = (2, 1, job.microbatches, job.microbatches)[job.layout.zero] * job.reduce_bytes
    return parameters * each * (size - 1) / size


def gathered_bytes(job: TrainingJob, parameters: float, size: int) -> float:
    """Gather weights that ranks have updated, at stage 3 for each pass of each microbatch."""
    each = (0, 1, 1, 2 * job.microbatches)[job.layout.zero] * job.gather_bytes
    return parameters * each * (size - 1) / size


def _optimizer_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Read and write the state of this rank once, ``step_traffic`` times over."""
    parameters = rank_parameters(job, rank)
    state = states(job, parameters)
    gradients = shard_gradients(job, parameters)
    moved = 2 * (state.master + state.optimizer) + gradients + state.weights
    return speed.step_traffic * moved / (hardware.memory_gigabytes_per_second * 1e9)


def evaluation_seconds(
    job: TrainingJob,
    hardware: Hardware,
    speed: SoftwareSpeed,
    *,
    sources: int,
    windows_per_source: int,
) -> float:
    """Predict one held-out evaluation (`components.train.callbacks.metrics_logger`).

    Every source is read on its own: its windows in batches of a microbatch's sequences, which
    the data ranks take in turns. One with less text has fewer windows than this counts.
    """
    job = replace(job, mtp_depth=0)  # only the model's own head
    layout = job.layout
    batches = ceil(windows_per_source / job.layout.microbatch_sequences)
    turns = ceil(batches / layout.replicas)
    stages = [forward_seconds(job, rank, hardware, speed) for rank in range(layout.pipeline)]
    # A rank with one stage takes its next turn while the ranks after it work on this one; with
    # several it waits until its last stage has been reached.
    further = max(stages) if job.placement.stages_per_rank == 1 else sum(stages)
    return sources * (sum(stages) + (turns - 1) * further)


def forward_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward through the stages of one rank.

    Of what a training step counts for both passes, memory traffic and the host's work are
    a third, collectives of tensor ranks a half.
    """
    layout, stages = job.layout, job.stages_of(rank)
    device = host = 0.0
    for kind, layers, _ in job.layer_kinds(stages):
        device += layers * _forward_layer(kind, hardware, speed)
        host += layers * host_seconds(kind, speed) / 3
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
        device = device + product + traffic / 3
    messages = speed.message_seconds * len(stages) if layout.pipeline > 1 else 0.0
    return max(device, host) + messages


def _forward_layer(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    each = layer_seconds(job, hardware, speed)
    return (
        each.products
        + each.attention
        + each.traffic / 3
        + communication.tensor_seconds(job, hardware, speed) / 2
        + communication.expert_seconds(job, hardware, each.experts)
        + waits(job, hardware, speed, each[1:3]).forward
        + communication.context_seconds(job, hardware)
    )


def timeline_of(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> Timeline:
    """Simulate one step from the predicted seconds of each stage.

    Raises:
        RecipeError: the profile lacks a figure that the seconds need.
    """
    layout = job.layout
    listed = orders(
        schedule=layout.schedule,
        pipeline=layout.pipeline,
        microbatches=job.microbatches,
        stages=job.placement.stages_per_rank,
        splits_backward=job.splits_backward,
    )
    return simulate(listed, stage_seconds(job, hardware, speed))


def stage_seconds(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed
) -> tuple[PassSeconds, ...]:
    """Divide each rank's seconds among its stages, and those into forward and backward.

    Without recomputation a forward pass is a third of a microbatch, in FLOPs as in
    ``rank_seconds``; the rest, recomputation included, is backward. The weights' gradient is
    the second half of a backward pass that recomputes nothing (Qi et al. 2023, arXiv
    2401.10241, section 2.2, takes the three for equal).
    """
    plain = job.with_layout(recompute="none")
    parts = []
    for stage, share in enumerate(_shares(job, hardware, speed)):
        rank = job.placement.rank_of(stage)
        forward = share * rank_seconds(plain, rank, hardware, speed) / 3
        backward = share * rank_seconds(job, rank, hardware, speed) - forward
        weights = forward if job.splits_backward else 0.0
        parts.append(PassSeconds(forward=forward, backward=backward, weights=weights))
    return tuple(parts)


def _shares(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """Weigh the stages of each rank as though each stage had a rank of its own."""
    count = len(job.layers_by_stage)
    if count == job.layout.pipeline:
        return [1.0] * count
    alone = job.with_layout(pipeline=count, stages_per_rank=1)
    weights = [rank_seconds(alone, stage, hardware, speed) for stage in range(count)]
    beside = [job.stages_of(job.placement.rank_of(stage)) for stage in range(count)]
    return [
        weight / sum(weights[other] for other in stages)
        for weight, stages in zip(weights, beside, strict=True)
    ]
