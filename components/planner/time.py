"""Seconds of one optimizer step, by part.

Every microbatch takes the longer of what the device computes and what the host can start. The
slowest stage sets the pace of a pipeline; then gradients are averaged and weights updated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner.communication import (
    context_seconds,
    expert_seconds,
    group_of,
    latency,
    reduce_bandwidth,
    tensor_seconds,
)
from components.planner.job import TrainingJob
from components.planner.products import (
    attention_seconds,
    head_product,
    head_traffic_seconds,
    layer_products,
    product_seconds,
    traffic_seconds,
)
from components.planner.schedule import bubble_fraction
from components.planner.software import SoftwareSpeed
from components.planner.states import rank_parameters, states


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
        return {
            "microbatches_seconds": self.microbatches,
            "bubble_seconds": self.bubble,
            "reduction_seconds": self.reduction,
            "optimizer_seconds": self.optimizer,
        }


def plan_time(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> StepTime:
    """Predict one step.

    Raises:
        RecipeError: the profile lacks a figure that this needs.
    """
    return step_time(job, busy_seconds(job, hardware, speed), hardware, speed)


def step_time(
    job: TrainingJob, busy: Sequence[float], hardware: Hardware, speed: SoftwareSpeed
) -> StepTime:
    """Predict one step from what a microbatch keeps each pipeline rank busy."""
    layout = job.layout
    microbatches, bubble = passes_seconds(job, busy)
    return StepTime(
        microbatches=microbatches,
        bubble=bubble,
        reduction=max(
            reduction_seconds(job, rank, hardware, speed, busy[rank])
            for rank in {0, layout.pipeline - 1}
        ),
        optimizer=max(
            optimizer_seconds(job, rank, hardware, speed) for rank in {0, layout.pipeline - 1}
        ),
    )


def passes_seconds(job: TrainingJob, busy: Sequence[float]) -> tuple[float, float]:
    """Return how long the slowest rank computes in a step, and how long it waits."""
    layout, slowest = job.layout, max(busy)
    fraction = bubble_fraction(
        schedule=layout.schedule,
        pipeline=layout.pipeline,
        microbatches=job.microbatches,
        stages=layout.stages_per_rank,
    )
    # Filling and draining go through all ranks, the quicker ones too.
    others = (sum(busy) - slowest) / max(layout.pipeline - 1, 1)
    return slowest * job.microbatches, fraction * job.microbatches * others


def busy_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """List the seconds of one microbatch on each pipeline rank; most ranks are alike."""
    layout, known, busy = job.layout, dict[tuple[int, int, bool], float](), []
    for rank in range(layout.pipeline):
        stages = range(rank, len(layout.layers), layout.pipeline)
        layers = sum(layout.layers[stage] for stage in stages)
        kind = (layers, len(stages), layout.head_stage in stages)
        if kind not in known:
            known[kind] = rank_seconds(job, rank, hardware, speed)
        busy.append(known[kind])
    return busy


def reached_teraflops(job: TrainingJob, hardware: Hardware) -> float:
    """Return what large products reach in the recipe's type.

    Raises:
        RecipeError: the device does not compute in this type, or nobody has measured it.
    """
    if job.compute not in hardware.peak_teraflops:
        raise RecipeError(
            "precision.compute",
            f"the profile of {hardware.device} states no peak in {job.compute}",
            f"choose one of {', '.join(hardware.peak_teraflops)}, or add the data sheet's",
        )
    if job.compute not in hardware.gemm_teraflops:
        raise RecipeError(
            f"cluster.hardware.gemm_teraflops.{job.compute}",
            f"the profile of {hardware.device} has no measured product in {job.compute}",
            "time torch.mm of two 8,192 x 8,192 matrices on all devices of a node, "
            "and set 1.0995 / seconds",
        )
    return hardware.gemm_teraflops[job.compute]


def rank_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward and backward through the stages of one rank."""
    layout = job.layout
    stages = range(rank, len(layout.layers), layout.pipeline)
    layers = sum(layout.layers[stage] for stage in stages)
    device = layers * _layer_seconds(job, hardware, speed)
    if layout.head_stage in stages:
        device += _head_seconds(job, hardware, speed)
    messages = 2 * speed.message_seconds * len(stages) if layout.pipeline > 1 else 0.0
    return max(device, layers * host_seconds(job, speed)) + messages


def host_seconds(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return what the host needs to start one layer, forward and backward."""
    if job.layout.tensor == 1:
        return speed.layer_seconds
    seconds = speed.tensor_layer_seconds
    if group_of(job.layout, "pipeline").nodes > 1:
        seconds += speed.crossing_layer_seconds * job.layout.tensor
    return seconds


def _layer_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    return sum(layer_parts(job, hardware, speed).values())


def layer_parts(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> dict[str, float]:
    """Name what a layer's passes consist of, forward once and backward twice, in seconds."""
    teraflops, units = reached_teraflops(job, hardware), hardware.compute_units
    products = layer_products(job)
    inner = product_seconds(products, teraflops, speed, units)
    experts = product_seconds(products[2:], teraflops, speed, units)
    core = attention_seconds(job, teraflops, hardware, speed)
    again = again_fraction(job)
    return {
        "products": 3 * inner + 3 * core,
        "recomputation": again[0] * inner + again[1] * core,
        "memory traffic": traffic_seconds(job, hardware, speed)
        * (1 + (again[0] + again[1]) / 6),
        "tensor collectives": tensor_seconds(job, hardware, speed) * (1 + again[0] / 3),
        "expert collectives": expert_seconds(job, hardware, experts)
        + expert_seconds(job, hardware, 2 * experts),
        "context collectives": context_seconds(job, hardware) * (2 + again[1]),
    }


def again_fraction(job: TrainingJob) -> tuple[float, float]:
    """Return the parts of the forward products, and of attention, that are computed twice."""
    if job.recompute == "none":
        return 0.0, 0.0
    if job.recompute == "full":
        return 1.0, 1.0
    products = layer_products(job)
    total = sum(product.flops for product in products)
    attention = sum(product.flops for product in products[:2]) / total
    parts = (attention if "attention" in job.recompute else 0.0) + (
        1 - attention if "mlp" in job.recompute else 0.0
    )
    return parts, 1.0 if "attention" in job.recompute else 0.0


def _head_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    rate = reached_teraflops(job, hardware)
    product = product_seconds((head_product(job),), rate, speed, hardware.compute_units)
    return 3 * product + head_traffic_seconds(job, hardware, speed)


def reduction_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed, microbatch: float
) -> float:
    """Average gradients, and gather weights under ZeRO (Rajbhandari et al. 2020, section 7)."""
    layout, parameters = job.layout, rank_parameters(job, rank)
    where = group_of(layout, "dense")
    seconds = 0.0
    if where.size > 1:
        rate = reduce_bandwidth(hardware, where, layout.devices_per_node)
        seconds += reduced_bytes(job, parameters.dense, where.size) / rate
    experts = group_of(layout, "data")
    if parameters.expert and experts.size > 1:
        rate = reduce_bandwidth(hardware, experts, layout.devices_per_node)
        seconds += reduced_bytes(job, parameters.expert, experts.size) / rate
    seconds *= speed.reduced_fraction
    if layout.zero == 0:
        seconds = max(seconds - speed.hides_reduction * microbatch * 2 / 3, 0.0)
    return seconds + speed.step_latencies * latency(hardware, where)


def reduced_bytes(job: TrainingJob, parameters: float, size: int) -> float:
    """Scatter gradients and gather them, or the weights instead.

    From stage 2 on every microbatch's gradients are scattered, at stage 3 the weights gathered
    twice for each as well (Rajbhandari et al. 2020, section 7.2).
    """
    gradient, zero = job.reduce_bytes, job.layout.zero
    each: float = 2 * gradient
    if zero in {1, 2}:
        each = gradient * (job.microbatches if zero == 2 else 1) + job.weight_bytes
    if zero == 3:
        each = (gradient + 2 * job.weight_bytes) * job.microbatches
    return parameters * each * (size - 1) / size


def optimizer_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Read and write the state of this rank once, ``step_traffic`` times over."""
    state = states(job, rank_parameters(job, rank))
    moved = 2 * (state.master + state.optimizer) + state.gradients + state.weights
    return speed.step_traffic * moved / (hardware.memory_gigabytes_per_second * 1e9)
