"""One optimizer step: its plan, its seconds by part and as a timeline; one evaluation.

The slowest stage sets the pace of a pipeline; then gradients are averaged and weights updated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil

from components.config.rank_groups import GroupAxis
from components.config.recipe import Recipe
from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner import communication
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.memory import Memory, plan_memory
from components.planner.passes import busy_seconds, forward_seconds, rank_seconds
from components.planner.schedule import bubble_fraction, orders
from components.planner.software import SoftwareModel, SoftwareSpeed
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


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Memory and time of a full step; ``time`` is None where the profile lacks a figure."""

    recipe: Recipe
    job: TrainingJob
    memory: Memory
    time: StepTime | None = None


def plan_steps(
    recipes: Iterable[Recipe], hardware: Hardware, software: SoftwareModel
) -> tuple[tuple[StepPlan, ...], RecipeError | None]:
    """Plan a step of each recipe; without times, and why, where one cannot be predicted."""
    steps = []
    for recipe in recipes:
        job = job_from_recipe(recipe)
        memory = plan_memory(job, hardware, software.memory)
        steps.append(StepPlan(recipe=recipe, job=job, memory=memory))
    try:
        times = [plan_time(step.job, hardware, software.speed) for step in steps]
    except RecipeError as error:
        return tuple(steps), error
    timed = (replace(step, time=time) for step, time in zip(steps, times, strict=True))
    return tuple(timed), None


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
    splits = job.splits_backward
    fraction = bubble_fraction(layout, job.microbatches, splits_backward=splits)
    # Filling and draining go through all ranks, the quicker ones too.
    others = (sum(busy) - slowest) / max(layout.pipeline - 1, 1)
    return slowest * job.microbatches, fraction * job.microbatches * others


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
    buckets = max(ceil(numbers / max(job.bucket_elements, parameters.largest)), 1)
    forward, backward = (1 - BACKWARD) * microbatch, BACKWARD * microbatch
    if layout.zero == 3:
        parts = job.layers_of(rank) + 1
        reduced, once = reduced / job.microbatches, gathered / job.microbatches / 2
        each = max(once - forward, once / parts)
        each += max(once + reduced - backward, reduced / parts)
        return job.microbatches * each
    times = job.microbatches if layout.zero == 2 else 1
    left = times * max(reduced / times - backward, reduced / times / buckets)
    if layout.engine == "deepspeed":  # gathers all weights at the end of its step
        return left + gathered
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
    """Scatter gradients; without ZeRO, or DeepSpeed's ``reduce_scatter``, gather them, too.

    From stage 2 on every microbatch's gradients are scattered (Rajbhandari et al. 2020, section
    7.2).
    """
    layout = job.layout
    each = (2, 1, job.microbatches, job.microbatches)[layout.zero] * job.reduce_bytes
    if layout.engine == "deepspeed" and layout.deepspeed and layout.zero in {1, 2}:
        each *= 1 if layout.deepspeed.reduce_scatter else 2
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
    """Predict one held-out evaluation (`components.train.callbacks.validation`).

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


def timeline_of(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> Timeline:
    """Simulate one step from the predicted seconds of each stage.

    Raises:
        RecipeError: the profile lacks a figure that the seconds need.
    """
    listed = orders(job.layout, job.microbatches, splits_backward=job.splits_backward)
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
