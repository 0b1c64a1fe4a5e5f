"""The result of a plan: one typed model from which text, JSON and page are read.

Its FLOP rates and utilisation (MFU, HFU) are in every convention, named.
"""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from components.config.derived import FlopsPerToken
from components.config.layout import AXES
from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.schema.sections import AssumedValue, PublishedFigure
from components.errors import RecipeError
from components.planner.experts import load_factor
from components.planner.job import TrainingJob
from components.planner.memory import Verdict
from components.planner.phase_result import PlannedPhase, planned_phase
from components.planner.plan import Bill, Plan
from components.planner.products import layer_products
from components.planner.recompute import price_of
from components.planner.search_result import LayoutsFound
from components.planner.software import Calibration
from components.planner.time import again_fraction, plan_time
from components.planner.tree import PlannedTree

_TIME_KEYS = ("step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu")


class PlannedLayout(BaseModel, frozen=True):
    """Degrees of the layout, and what it is laid out on."""

    data: int
    tensor: int
    pipeline: int
    expert: int
    context: int
    zero: int
    nodes: int
    devices_per_node: int
    microbatches: int
    layers_by_stage: tuple[int, ...]


class PlannedMemory(BaseModel, frozen=True):
    """Bytes of the fullest rank, of a device, and of each pipeline rank's parts."""

    peak_bytes: int
    device_bytes: int
    usable_bytes: int
    verdict: Verdict
    by_stage: tuple[dict[str, int], ...]


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


class PlannedRecomputation(BaseModel, frozen=True):
    """What is recomputed, what it adds to a step, and takes from the fullest rank's peak."""

    recompute: str | tuple[str, ...]
    recompute_every: int
    extra_seconds: float | None
    saved_bytes: int


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


class ComparedFigure(PublishedFigure):
    """A published figure beside the prediction; ``deviation`` is a fraction of it."""

    predicted: int | float | None
    deviation: float | None


class CalibrationSummary(BaseModel, frozen=True):
    """What of the cluster's own runs stands behind the plan."""

    fitted_on: str
    layouts: int
    median_error: float
    p90_error: float


class MissingFigure(BaseModel, frozen=True):
    """A figure of the machine that nobody has measured, or a limit of its queues."""

    figure: str
    problem: str
    remedy: str


class PlanResult(BaseModel, frozen=True):
    """A plan as ``output=json`` promises it; bytes, seconds, hours and days.

    ``time`` and ``bill`` are null where the profile lacks what a step's time needs.
    """

    recipe: str
    cluster: str
    scale: str
    layout: PlannedLayout
    memory: PlannedMemory
    recomputation: PlannedRecomputation | None
    experts: PlannedExperts | None
    time: PlannedTime | None
    bill: Bill | None
    published: dict[str, ComparedFigure | PublishedFigure]
    assumed: dict[str, AssumedValue]
    calibration: CalibrationSummary | None
    missing: tuple[MissingFigure, ...]
    limit: MissingFigure | None
    search: LayoutsFound | None
    phases: tuple[PlannedPhase, ...]
    children: PlannedTree | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the tree; the keys of what is not predicted are there, and null."""
        tree = self.model_dump(mode="json")
        if self.time is None:
            tree["time"] = dict.fromkeys(_TIME_KEYS)
        if self.bill is None:
            tree["bill"] = dict.fromkeys(Bill.model_fields)
        if self.search is None:
            del tree["search"]
        if not self.phases:
            del tree["phases"]
        if self.children is None:
            del tree["children"]
        return tree


def plan_result(recipe: Recipe, plan: Plan, search: LayoutsFound | None = None) -> PlanResult:
    """Sum up a plan of ``recipe``, and the search that its layout comes from."""
    job, time = plan.job, planned_time(plan)
    memory = PlannedMemory(
        peak_bytes=round(plan.memory.peak),
        device_bytes=plan.hardware.memory_bytes,
        usable_bytes=plan.memory.usable_bytes,
        verdict=plan.memory.verdict,
        by_stage=tuple(rank.parts() for rank in plan.memory.ranks),
    )
    # As sources name them. The rates that papers print count the whole attention and what they
    # recompute.
    derived, checkpoints = recipe.derived, getattr(plan.bill, "checkpoints", None)
    predictions = {
        "parameters": derived.parameters.total,
        "active_parameters": derived.parameters.active,
        "total_tokens": recipe.budget.total_tokens,
        "tokens_per_step": derived.tokens_per_step,
        "microbatches_per_step": derived.microbatches_per_step,
        "steps": derived.steps,
        "devices": derived.ranks,
        "checkpoint_bytes": getattr(checkpoints, "bytes", None),
        "checkpoint_seconds": getattr(checkpoints, "write_seconds", None),
        "memory_bytes": memory.peak_bytes,
        "step_seconds": getattr(time, "step_seconds", None),
        "tokens_per_second_per_device": getattr(time, "tokens_per_second_per_device", None),
        "tflops_per_device": getattr(time, "tflops_per_device_hardware", None),
        "device_hours": getattr(plan.bill, "device_hours", None),
        "energy_kwh": getattr(plan.bill, "energy_kwh", None),
        "kg_co2e": plan.bill.emissions.kg_co2e if plan.bill else None,
    }
    return PlanResult(
        recipe=recipe.name,
        cluster=recipe.cluster.name,
        scale=recipe.scale.name,
        layout=PlannedLayout(
            **{name: getattr(job.layout, name) for name in (*AXES, "zero")},
            nodes=recipe.cluster.nodes,
            devices_per_node=recipe.cluster.devices_per_node,
            microbatches=job.microbatches,
            layers_by_stage=job.layout.layers,
        ),
        memory=memory,
        recomputation=_recomputation(plan),
        experts=_experts(plan),
        time=time,
        bill=plan.bill,
        published={
            name: _compared(item, predictions[name]) if name in predictions else item
            for name, item in recipe.published.items()
        },
        assumed=dict(recipe.assumed),
        calibration=_calibration(plan.calibration),
        limit=None if plan.limit is None else _told(plan.limit),
        missing=tuple(_told(item) for item in plan.missing),
        search=search,
        phases=tuple(planned_phase(plan, place) for place, _ in enumerate(plan.phases)),
    )


def _told(error: RecipeError) -> MissingFigure:
    return MissingFigure(figure=error.path, problem=error.problem, remedy=error.remedy)


def _recomputation(plan: Plan) -> PlannedRecomputation | None:
    if plan.job.recompute in {"none", ()}:
        return None
    price = price_of(plan.job, plan.hardware, plan.software)
    return PlannedRecomputation(
        recompute=plan.job.recompute,
        recompute_every=plan.job.layout.recompute_every,
        extra_seconds=price.extra_seconds,
        saved_bytes=round(price.saved_bytes),
    )


def _experts(plan: Plan) -> PlannedExperts | None:
    job, speed = plan.job, plan.software.speed
    if not job.shape.mlp.num_experts or plan.time is None:
        return None
    step = plan.time.total
    aware = replace(job.layout, expert_aware=True)
    path, load, plain = (
        step - plan_time(other, plan.hardware, speed).total
        for other in (
            replace(job, expert_path="grouped"),
            replace(job, even_load=True),
            replace(job, layout=aware),
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


def _calibration(found: Calibration | None) -> CalibrationSummary | None:
    if found is None:
        return None
    error = found.time_error.held_out
    return CalibrationSummary(
        fitted_on=found.fitted_on,
        layouts=found.layouts,
        median_error=error.median,
        p90_error=error.p90,
    )


def _compared(item: PublishedFigure, predicted: float | None) -> PublishedFigure:
    if not isinstance(item.value, int | float):
        return item
    deviation = None if predicted is None else predicted / item.value - 1
    return ComparedFigure(**item.model_dump(), predicted=predicted, deviation=deviation)


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
    for kind, layers, recomputed in job.kinds_of(range(len(job.layout.layers))):
        products, attention = again_fraction(kind)
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
