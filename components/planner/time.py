"""Step time: the plan of one optimizer step, its parts, its timeline, and of an evaluation."""

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
from components.planner.passes import (
    busy_seconds,
    count_update_launches,
    forward_seconds,
    rank_seconds,
)
from components.planner.schedule import bubble_fraction, list_actions
from components.planner.software import SoftwareModel, SoftwareSpeed
from components.planner.states import (
    compute_states,
    rank_parameters,
    shard_gradients,
    sharing_ranks,
)
from components.planner.timeline import PassSeconds, Timeline, simulate_step

BACKWARD = 2 / 3  # fraction of a microbatch's passes


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step by part. ``microbatches`` is the busy time of the slowest rank."""

    microbatches: float
    bubble: float
    reduction: float
    optimizer: float

    @property
    def total_seconds(self) -> float:
        return self.microbatches + self.bubble + self.reduction + self.optimizer

    def seconds_by_part(self) -> dict[str, float]:
        return {f"{name}_seconds": value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Memory and time of one step. ``time`` is None if the profile lacks a required number."""

    recipe: Recipe
    job: TrainingJob
    memory: Memory
    time: StepTime | None = None


def plan_steps(
    recipes: Iterable[Recipe], hardware: Hardware, software: SoftwareModel
) -> tuple[tuple[StepPlan, ...], RecipeError | None]:
    """Plan a step of each recipe; if one time cannot be predicted, no times and the error."""
    steps = []
    for recipe in recipes:
        job = job_from_recipe(recipe)
        memory = plan_memory(job, hardware, software.memory)
        steps.append(StepPlan(recipe=recipe, job=job, memory=memory))
    speed = software.speed
    try:
        timed = [replace(step, time=plan_time(step.job, hardware, speed)) for step in steps]
    except RecipeError as error:
        return tuple(steps), error
    return tuple(timed), None


def plan_time(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed, busy: Sequence[float] = ()
) -> StepTime:
    """Predict the time of one step; ``busy`` is the result of `busy_seconds`, if known."""
    busy = busy or busy_seconds(job, hardware, speed)
    microbatches, bubble = passes_seconds(job, busy)
    ends = {0, job.layout.pipeline - 1}  # a V schedule puts both ends on the first rank
    step = StepTime(
        microbatches=microbatches,
        bubble=bubble,
        reduction=max(_reduction_seconds(job, r, hardware, speed, busy[r]) for r in ends),
        optimizer=max(_optimizer_seconds(job, rank, hardware, speed) for rank in ends),
    )
    parts = asdict(step) if speed.step_factor != 1 else {}
    return replace(step, **{part: speed.step_factor * own for part, own in parts.items()})


def passes_seconds(job: TrainingJob, busy: Sequence[float]) -> tuple[float, float]:
    """Return the slowest rank's compute seconds and wait seconds (pipeline bubble) per step."""
    layout, slowest = job.layout, max(busy)
    splits = job.splits_backward
    fraction = bubble_fraction(layout, job.microbatches, splits_backward=splits)
    # Filling and draining the pipeline involves all ranks, including the faster ones.
    others = (sum(busy) - slowest) / max(layout.pipeline - 1, 1)
    return slowest * job.microbatches, fraction * job.microbatches * others


def _reduction_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed, microbatch: float
) -> float:
    """Return the seconds to average gradients and, under ZeRO, to gather weights.

    Rajbhandari et al. 2020, section 7, without overlapped communication (`_exposed`).
    """
    layout = job.layout
    where = job.rank_groups.find_group("dense")
    reduced = gathered = 0.0
    for axis, scattered, spread in averaged_bytes(job, rank):
        ranks = job.rank_groups.find_group(axis)
        rate = communication.reduce_bandwidth(hardware, ranks, job.devices_per_node)
        reduced += scattered / rate
        gathered += spread / rate
    reduced *= speed.reduced_fraction
    gathered *= speed.reduced_fraction
    if job.has_overlap or layout.zero == 3:
        seconds = _exposed(job, rank, reduced, gathered, microbatch)
    else:
        hidden = (layout.zero == 0) * speed.hides_reduction * microbatch * BACKWARD
        seconds = max(reduced + gathered - hidden, 0.0)
    return seconds + speed.step_latencies * communication.get_latency(hardware, where)


def _exposed(
    job: TrainingJob, rank: int, reduced: float, gathered: float, microbatch: float
) -> float:
    """Return the seconds of a step's data-parallel collectives that do not overlap with a pass.

    A backward pass hides all gradient buckets but the last; only the last microbatch reduces,
    under ZeRO 2 and 3 every microbatch. A forward pass hides all weight buckets except the
    first. ZeRO 3 uses layers as buckets, and each pass hides its own gathers.
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
    exposed = times * max(reduced / times - backward, reduced / times / buckets)
    if layout.engine == "deepspeed":  # DeepSpeed gathers all weights at the end of its step
        return exposed + gathered
    return exposed + max(gathered - forward, gathered / buckets)


def averaged_bytes(job: TrainingJob, rank: int) -> list[tuple[GroupAxis, float, float]]:
    """List the gradient and weight bytes that a step sends, by group of ranks.

    Without an expert-aware optimizer, only an expert rank's replicas share the dense state, and
    expert ranks sum the gradients of their shards (`components.distributed.mesh`).
    """
    layout, parameters = job.layout, rank_parameters(job, rank)
    plain = layout.zero > 0 and layout.expert > 1 and not layout.expert_aware
    families: tuple[tuple[GroupAxis, float], ...] = (
        ("data" if plain else "dense", parameters.dense),
        ("data", parameters.expert),
    )
    sent = list[tuple[GroupAxis, float, float]]()
    for axis, count in families:
        size = job.rank_groups.find_group(axis).size
        if count and size > 1:
            sizes = reduced_bytes(job, count, size), gathered_bytes(job, count, size)
            sent.append((axis, *sizes))
    if plain:
        times = 1 if layout.zero == 1 else job.microbatches
        shard = times * job.reduce_bytes * parameters.dense / sharing_ranks(layout)[0]
        sent.append(("expert", 2 * shard * (layout.expert - 1) / layout.expert, 0.0))
    return sent


def reduced_bytes(job: TrainingJob, parameters: float, size: int) -> float:
    """Return the gradient bytes sent per rank: reduce-scatter under ZeRO, else all-reduce.

    DeepSpeed without ``reduce_scatter`` also uses all-reduce. From stage 2 on, the gradients of
    every microbatch are scattered (Rajbhandari et al. 2020, section 7.2).
    """
    layout = job.layout
    each = (2, 1, job.microbatches, job.microbatches)[layout.zero] * job.reduce_bytes
    if layout.engine == "deepspeed" and layout.deepspeed and layout.zero in {1, 2}:
        each *= 1 if layout.deepspeed.reduce_scatter else 2
    return parameters * each * (size - 1) / size


def gathered_bytes(job: TrainingJob, parameters: float, size: int) -> float:
    """Return the weight bytes gathered: after the update, or at stage 3 in every pass."""
    each = (0, 1, 1, 2 * job.microbatches)[job.layout.zero] * job.gather_bytes
    return parameters * each * (size - 1) / size


def _optimizer_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Return the optimizer seconds: ``step_traffic`` times one read and write of its state.

    The host's launches of the step take at least as long.
    """
    parameters = rank_parameters(job, rank)
    state = compute_states(job, parameters)
    gradients = shard_gradients(job, parameters)
    moved = 2 * (state.master + state.optimizer) + gradients + state.weights
    device = speed.step_traffic * moved / (hardware.memory_gigabytes_per_second * 1e9)
    return max(device, count_update_launches(job, rank) * speed.launch_seconds)


def evaluation_seconds(
    job: TrainingJob,
    hardware: Hardware,
    speed: SoftwareSpeed,
    *,
    sources: int,
    windows_per_source: int,
) -> float:
    """Predict the seconds of one held-out evaluation (`components.train.callbacks.validation`).

    The data ranks take each source's batches of one microbatch in turns. The prediction is too
    long for a source with fewer windows than ``windows_per_source``.
    """
    job = replace(job, mtp_depth=0)  # evaluation uses the main head only
    layout = job.layout
    batches = ceil(windows_per_source / job.layout.microbatch_sequences)
    turns = ceil(batches / layout.num_replicas)
    stages = [forward_seconds(job, rank, hardware, speed) for rank in range(layout.pipeline)]
    # A rank with one stage starts its next batch while later ranks work on the current one. A
    # rank with several stages waits until its last stage is done.
    further = max(stages) if job.stage_placement.stages_per_rank == 1 else sum(stages)
    return sources * (sum(stages) + (turns - 1) * further)


def timeline_of(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> Timeline:
    """Simulate the timeline of one step from each stage's predicted seconds."""
    listed = list_actions(job.layout, job.microbatches, splits_backward=job.splits_backward)
    return simulate_step(listed, stage_seconds(job, hardware, speed))


def stage_seconds(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed
) -> tuple[PassSeconds, ...]:
    """Divide each rank's seconds among its stages, and each stage's into forward and backward.

    Without recomputation, the forward pass takes a third of a microbatch, in FLOPs as in
    ``rank_seconds``. The rest is backward; the weight gradient is half of that without
    recomputation (equal thirds: Qi et al. 2023, arXiv 2401.10241, section 2.2).
    """
    plain = job.with_layout(recompute="none")
    parts = []
    for stage, share in enumerate(_shares(job, hardware, speed)):
        rank = job.stage_placement.rank_of(stage)
        forward = share * rank_seconds(plain, rank, hardware, speed) / 3
        backward = share * rank_seconds(job, rank, hardware, speed) - forward
        weights = forward if job.splits_backward else 0.0
        parts.append(PassSeconds(forward=forward, backward=backward, weights=weights))
    return tuple(parts)


def _shares(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """Return each stage's share of its rank's time, from a layout with one stage per rank."""
    count = len(job.layers_by_stage)
    if count == job.layout.pipeline:
        return [1.0] * count
    alone = job.with_layout(pipeline=count, stages_per_rank=1)
    weights = [rank_seconds(alone, stage, hardware, speed) for stage in range(count)]
    rank_stages = [job.stages_of(job.stage_placement.rank_of(stage)) for stage in range(count)]
    return [
        weight / sum(weights[other] for other in stages)
        for weight, stages in zip(weights, rank_stages, strict=True)
    ]
