"""Rates of a planned step in every convention, and what its choices cost.

A choice costs what the step takes longer than a step without it.
"""

from dataclasses import replace

from pydantic import BaseModel

from components.config.derived import FlopsPerToken
from components.config.model_spec.decoder import DecoderSpec
from components.config.schema.cluster import Hardware
from components.planner.job import TrainingJob
from components.planner.memory import plan_memory
from components.planner.passes import load_factor, recompute_fraction
from components.planner.products import layer_products
from components.planner.recompute import NOTHING
from components.planner.software import SoftwareModel
from components.planner.time import StepPlan, plan_time


class PlannedTime(BaseModel, frozen=True):
    """Seconds of a step and between what they are expected, its rates and its parts.

    Rates are tokens a second, and the same as TFLOP/s a device and as parts of the peak, the
    vendor's for dense products. ``full`` counts the whole attention matrix, ``causal`` half of
    it, ``hardware`` and ``hfu`` add what is computed twice to ``full`` (Korthikanti et al.
    2022, arXiv 2205.05198, section 6.3, model and hardware FLOPs). Energy is the devices' rated
    power times the step.
    """

    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    joules_per_token: float | None
    tflops_per_device_full: float
    tflops_per_device_causal: float
    tflops_per_device_hardware: float
    tflops_per_device_by_convention: dict[str, float]
    mfu_full: float
    mfu_causal: float
    hfu: float
    parts: dict[str, float]


def rate_step(step: StepPlan, hardware: Hardware, error_fraction: float) -> PlannedTime | None:
    """Turn a step's predicted seconds into rates, and into their range by the error."""
    if step.time is None:
        return None
    job, seconds = step.job, step.time.total
    counted = flops_by_convention(job.shape, job.sequence_length, pipeline=job.layout.pipeline)
    device = job.tokens_per_step / seconds / job.layout.ranks
    rates = {name: count * device / 1e12 for name, count in counted.items()}
    full, causal = rates["full"], rates["causal"]
    hardware_rate = _hardware_flops(job, counted["full"]) * device / 1e12
    peak, watts = hardware.peak_teraflops[job.compute], hardware.device_watts
    return PlannedTime(
        step_seconds=seconds,
        step_seconds_low=seconds / (1 + error_fraction),
        step_seconds_high=seconds * (1 + error_fraction),
        tokens_per_second=device * job.layout.ranks,
        tokens_per_second_per_device=device,
        joules_per_token=None if watts is None else watts / device,
        tflops_per_device_full=full,
        tflops_per_device_causal=causal,
        tflops_per_device_hardware=hardware_rate,
        tflops_per_device_by_convention=rates,
        mfu_full=full / peak,
        mfu_causal=causal / peak,
        hfu=hardware_rate / peak,
        parts=step.time.parts(),
    )


def _hardware_flops(job: TrainingJob, full: float) -> float:
    """Add the forward pass of what is recomputed; attention counts in full."""
    passes, total = job.attention_passes, full
    heads = job.shape.attention
    width = heads.num_heads * (heads.head_dim + job.value_width)
    seen = sum(job.shape.visible_keys(job.sequence_length)) / job.shape.num_layers
    core = 2 * width * seen
    for kind, layers, recomputed in job.layer_kinds(range(len(job.layers_by_stage))):
        products, attention = recompute_fraction(kind)
        forward = sum(product.flops for product in layer_products(kind)) * job.layout.tensor
        again = products * forward / job.microbatch_tokens
        again += passes * attention * core
        total += recomputed * again + layers * 3 * (passes - 1) * core
    return total


def flops_by_convention(
    shape: DecoderSpec, sequence_length: int, *, pipeline: int
) -> dict[str, float]:
    """Count FLOPs a token of forward and backward in seven conventions.

    The same run has other TFLOP/s in each: a rate without its convention compares with nothing.
    N are the parameters that a token is multiplied with, L layers, h the attention's width, s
    the sequence, or the window of a layer that has one.

    ``full`` 6 N + 12 L h s (torchtitan, OLMo-core, MosaicML's llm-foundry, nanotron's counter);
    ``causal`` 6 N + 6 L h s (Megatron-Bridge, MaxText); ``causal_recomputed_attention``
    6 N + 7 L h s (lingua); ``fourfold`` 4 / 3 of ``full`` (programs that count a recomputed
    forward pass whenever anything is recomputed); ``ends_twice`` has tied ends of a pipeline in
    N twice (``mfu`` of the playbook's table); ``megatron_logged`` and
    ``megatron_logged_fourfold`` are equation 3 of Narayanan et al. 2021 (arXiv 2104.04473) as
    Megatron-LM printed it in 2023, which takes every MLP for four widths and every head for a
    query's.
    """
    flops = FlopsPerToken.of(shape, sequence_length)
    heads = shape.attention
    width = heads.num_heads * (heads.head_dim + heads.values)
    once = width * shape.causal_keys(sequence_length)  # L h s
    again = shape.vocab_size * shape.dim if shape.tied_embeddings and pipeline > 1 else 0
    logged = _megatron_logged(shape, sequence_length)
    return {
        "full": flops.full,
        "causal": flops.causal,
        "causal_recomputed_attention": flops.causal + once,
        "fourfold": flops.full * 4 / 3,
        "ends_twice": flops.full + 6 * again,
        "megatron_logged": 3 * logged,
        "megatron_logged_fourfold": 4 * logged,
    }


def _megatron_logged(shape: DecoderSpec, sequence_length: int) -> float:
    """Return c L h^2 (1 + s / 6 h + V / 16 L h) of a forward pass: c is 24, 32 with a gate."""
    layers, dim = shape.num_layers, shape.dim
    factor = 32 if shape.mlp.gated else 24
    ends = 1 + sequence_length / (6 * dim) + shape.padded_vocab_size / (16 * layers * dim)
    return factor * layers * dim**2 * ends


class PlannedRecomputation(BaseModel, frozen=True):
    """What is recomputed, what it adds to a step, and takes from the fullest rank's peak.

    ``extra_seconds`` is None where the profile lacks a figure that the time needs.
    """

    recompute: str | tuple[str, ...]
    recompute_every: int
    extra_seconds: float | None
    saved_bytes: int


def price_recompute(
    step: StepPlan, hardware: Hardware, software: SoftwareModel
) -> PlannedRecomputation | None:
    """Compare a step with one without recomputation, if it recomputes anything."""
    layout, plain = step.job.layout, NOTHING.of(step.job)
    if layout.recompute in {"none", ()}:
        return None
    extra = None
    if step.time is not None:
        extra = step.time.total - plan_time(plain, hardware, software.speed).total
    before = plan_memory(plain, hardware, software.memory).peak
    return PlannedRecomputation(
        recompute=layout.recompute,
        recompute_every=layout.recompute_every,
        extra_seconds=extra,
        saved_bytes=round(before - step.memory.peak),
    )


class PlannedExperts(BaseModel, frozen=True):
    """What a step of a mixture of experts takes longer than it might, in seconds.

    ``path_seconds`` than by grouped products, ``load_seconds`` than at even load, where the
    fullest expert rank has ``load_factor`` times the mean, ``plain_seconds`` than by an
    expert-aware optimizer.
    """

    path: str
    path_seconds: float
    load_factor: float
    fullest_expert: float
    load_seconds: float
    plain_seconds: float


def price_experts(
    step: StepPlan, hardware: Hardware, software: SoftwareModel
) -> PlannedExperts | None:
    """Compare a step of experts with one by each better choice, if it has a time."""
    job, speed = step.job, software.speed
    if not job.shape.mlp.num_experts or step.time is None:
        return None
    total = step.time.total
    path, load, plain = (
        total - plan_time(other, hardware, speed).total
        for other in (
            replace(job, expert_path="grouped"),
            replace(job, even_load=True),
            job.with_layout(expert_aware=True),
        )
    )
    return PlannedExperts(
        path=job.expert_path,
        path_seconds=path,
        load_factor=load_factor(job, speed),
        fullest_expert=1.0 if job.even_load else speed.fullest_expert,
        load_seconds=load,
        plain_seconds=plain,
    )
