"""Rates of a planned step: tokens and FLOPs a second, and utilisation in every convention."""

from pydantic import BaseModel

from components.config.derived import FlopsPerToken
from components.config.model_spec.decoder import DecoderSpec
from components.planner.job import TrainingJob
from components.planner.plan import Plan
from components.planner.products import layer_products
from components.planner.time import recompute_fraction


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


def planned_time(plan: Plan) -> PlannedTime | None:
    """Turn a step's seconds into rates, if they were predicted."""
    if plan.time is None:
        return None
    job, step, error_fraction = plan.job, plan.time, plan.error_fraction
    counted = flops_by_convention(job.shape, job.sequence_length, pipeline=job.layout.pipeline)
    device = job.tokens_per_step / step.total / job.layout.ranks
    rates = {name: count * device / 1e12 for name, count in counted.items()}
    full, causal = rates["full"], rates["causal"]
    hardware_rate = _hardware_flops(job, counted["full"]) * device / 1e12
    peak, watts = plan.hardware.peak_teraflops[job.compute], plan.hardware.device_watts
    return PlannedTime(
        step_seconds=step.total,
        step_seconds_low=step.total / (1 + error_fraction),
        step_seconds_high=step.total * (1 + error_fraction),
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
        parts=step.parts(),
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
