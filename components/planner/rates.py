"""Rates of a planned step in every convention, and the extra time of its choices."""

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
    """Predicted seconds of a step with their range, its rates and its parts.

    MFU and HFU are fractions of the vendor's dense peak. ``full`` counts the whole attention
    matrix, ``causal`` half of it; ``hardware`` and ``hfu`` add recomputation to ``full``
    (Korthikanti et al. 2022, arXiv 2205.05198, section 6.3). Energy is from rated power.
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
    """Convert a step's predicted seconds to rates, with a range from the expected error."""
    if step.time is None:
        return None
    job, seconds = step.job, step.time.total_seconds
    counted = flops_by_convention(job.shape, job.sequence_length, pipeline=job.layout.pipeline)
    device = job.tokens_per_step / seconds / job.layout.num_ranks
    rates = {name: count * device / 1e12 for name, count in counted.items()}
    full, causal = rates["full"], rates["causal"]
    hardware_rate = _hardware_flops(job, counted["full"]) * device / 1e12
    peak, watts = hardware.peak_teraflops[job.compute], hardware.device_watts
    return PlannedTime(
        step_seconds=seconds,
        step_seconds_low=seconds / (1 + error_fraction),
        step_seconds_high=seconds * (1 + error_fraction),
        tokens_per_second=device * job.layout.num_ranks,
        tokens_per_second_per_device=device,
        joules_per_token=None if watts is None else watts / device,
        tflops_per_device_full=full,
        tflops_per_device_causal=causal,
        tflops_per_device_hardware=hardware_rate,
        tflops_per_device_by_convention=rates,
        mfu_full=full / peak,
        mfu_causal=causal / peak,
        hfu=hardware_rate / peak,
        parts=step.time.seconds_by_part(),
    )


def _hardware_flops(job: TrainingJob, full: float) -> float:
    """Add the FLOPs of recomputed forward passes. Attention counts in full."""
    passes, total = job.attention_passes, full
    for kind, layers, recomputed in job.layer_kinds(range(len(job.layers_by_stage))):
        heads = kind.shape.attention
        width = heads.num_heads * (heads.head_dim + kind.value_width)
        keys = kind.shape.visible_keys(job.sequence_length)
        core = 2 * width * sum(keys) / max(len(keys), 1)
        products, attention = recompute_fraction(kind)
        forward = sum(product.num_flops for product in layer_products(kind)) * job.layout.tensor
        again = products * forward / job.microbatch_tokens
        again += attention * (passes * core + kind.shape.layer_state_flops)
        total += recomputed * again + layers * 3 * (passes - 1) * core
    return total


def flops_by_convention(
    shape: DecoderSpec, sequence_length: int, *, pipeline: int
) -> dict[str, float]:
    """Return FLOPs per token, forward and backward, in seven conventions, not comparable.

    N is the number of parameters that a token is multiplied with, L the number of layers, h the
    width of attention, s the sequence length, or a layer's window if it has one.

    ``full`` is 6 N + 12 L h s (torchtitan, OLMo-core, MosaicML's llm-foundry, nanotron's
    counter). ``causal`` is 6 N + 6 L h s (Megatron-Bridge, MaxText).
    ``causal_recomputed_attention`` is 6 N + 7 L h s (lingua). ``fourfold`` is 4 / 3 of ``full``
    (programs that count a recomputed forward pass whenever anything is recomputed).
    ``ends_twice`` counts the tied embeddings of a pipeline twice in N (``mfu`` of the
    playbook's table). ``megatron_logged`` and ``megatron_logged_fourfold`` are equation 3 of
    Narayanan et al. 2021 (arXiv 2104.04473) as Megatron-LM printed it in 2023: it assumes an
    MLP of four widths and no grouped heads.
    """
    flops = FlopsPerToken.from_spec(shape, sequence_length)
    once = shape.attention.product_width * shape.causal_keys(sequence_length)  # L h s
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
    """Return c L h^2 (1 + s / 6 h + V / 16 L h) of a forward pass, c = 24, gated 32."""
    layers, dim = shape.num_layers, shape.dim
    factor = 32 if shape.mlp.gated else 24
    ends = 1 + sequence_length / (6 * dim) + shape.padded_vocab_size / (16 * layers * dim)
    return factor * layers * dim**2 * ends


class PlannedRecomputation(BaseModel, frozen=True):
    """Recomputation: seconds added (None if unknown), bytes saved on the fullest rank."""

    recompute: str | tuple[str, ...]
    recompute_every: int
    extra_seconds: float | None
    saved_bytes: int


def price_recompute(
    step: StepPlan, hardware: Hardware, software: SoftwareModel
) -> PlannedRecomputation | None:
    """Compare a step with the same step without recomputation, if it recomputes anything."""
    layout, plain = step.job.layout, NOTHING.apply_to(step.job)
    if layout.recompute in {"none", ()}:
        return None
    extra = None
    if step.time is not None:
        unrepeated = plan_time(plain, hardware, software.speed).total_seconds
        extra = step.time.total_seconds - unrepeated
    before = plan_memory(plain, hardware, software.memory).fullest_rank_bytes
    return PlannedRecomputation(
        recompute=layout.recompute,
        recompute_every=layout.recompute_every,
        extra_seconds=extra,
        saved_bytes=round(before - step.memory.fullest_rank_bytes),
    )


class PlannedExperts(BaseModel, frozen=True):
    """Extra seconds of a mixture-of-experts step compared to better choices.

    Better are grouped products (``path_seconds``), even load and an expert-aware optimizer
    (``plain_seconds``). ``load_factor`` is the load of the fullest rank over the mean.
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
    """Compare a mixture-of-experts step with each better choice, if the step has a time."""
    job, speed = step.job, software.speed
    if not job.shape.mlp.num_experts or step.time is None:
        return None
    total = step.time.total_seconds
    path, load, plain = (
        total - plan_time(other, hardware, speed).total_seconds
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
