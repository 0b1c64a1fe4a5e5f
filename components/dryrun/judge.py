"""Judge a dry run beside its plan: memory, bytes sent by axis, FLOPs.

The device holds more than tensors: the plan's fragmentation of activations and its base are
added before a peak is judged, by the plan's own margins.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from components.dryrun.drive import Role
from components.planner.communication import (
    EXPERT_COLLECTIVES,
    context_bytes,
    expert_bytes,
    group_of,
    tensor_bytes,
)
from components.planner.job import BYTES, TrainingJob
from components.planner.layer import head_product, layer_products
from components.planner.memory import RankMemory, Verdict, verdict_of
from components.planner.plan import Plan
from components.planner.software import SoftwareModel, SoftwareSpeed
from components.planner.states import rank_parameters
from components.planner.time import again_fraction, reduced_bytes


def sent_bytes(job: TrainingJob, rank: int, speed: SoftwareSpeed) -> dict[str, float]:
    """Count them for one pipeline rank."""
    layout, again, held = job.layout, again_fraction(job), rank_parameters(job, rank)
    passed = _layers(job, rank) * job.microbatches
    tensor = speed.tensor_collectives * (1 + again[0] / 3) * tensor_bytes(job)
    sent = {
        "tensor": passed * tensor if layout.tensor > 1 else 0.0,
        "expert": passed * EXPERT_COLLECTIVES * expert_bytes(job),
        "context": passed * (2 + again[1]) * context_bytes(job),
        "pipeline": _between_stages(job, rank),
        "data": reduced_bytes(job, held.dense, group_of(layout, "dense").size)
        + reduced_bytes(job, held.expert, group_of(layout, "data").size),
    }
    return {axis: count for axis, count in sent.items() if count}


def step_flops(job: TrainingJob, rank: int) -> float:
    """Count FLOPs of one rank's products, attention in full, with what is computed twice.

    A layer's by `components.planner.layer`, forward once and backward twice.
    """
    layout, again = job.layout, again_fraction(job)
    products = sum(product.flops for product in layer_products(job))
    attention = job.shape.attention
    width = attention.num_heads * attention.head_dim / layout.tensor
    core = 4.0 * width * job.sequence_length * job.microbatch_tokens
    layers = _layers(job, rank) * ((3 + again[0]) * products + (3 + again[1]) * core)
    head = layout.head_stage % layout.pipeline == rank
    return job.microbatches * (layers + 3 * head * head_product(job).flops)


def _between_stages(job: TrainingJob, rank: int) -> float:
    """Count hidden states and their gradients, and a tied embedding's gradient by shards."""
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


def _layers(job: TrainingJob, rank: int) -> int:
    return sum(job.layout.layers[rank :: job.layout.pipeline])


_WORTH_NAMING = 0.05  # a difference below it is not named
_SMALL = 0.01  # nor is one of a part that is less of the whole

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FigureDifference:
    """A figure of the plan beside that of the dry run."""

    figure: str
    planned: float
    found: float
    whole: float

    @property
    def is_named(self) -> bool:
        apart = abs(self.found - self.planned)
        return apart > _WORTH_NAMING * self.planned and apart > _SMALL * self.whole


@dataclass(frozen=True, kw_only=True)
class RoleResult:
    """One role: the peak on the device, the plan's, and all figures of both."""

    role: Role
    found: Found
    peak_bytes: float
    planned_bytes: float
    verdict: Verdict
    differences: tuple[FigureDifference, ...]


def judge(role: Role, found: Found, plan: Plan) -> RoleResult:
    """Set one role beside the plan of its pipeline rank."""
    software = plan.software
    memory = plan.memory.ranks[role.pipeline_rank]
    lost, base = software.memory.fragmentation - 1, software.memory.base_bytes
    # What an allocator loses between activations, and what is there before anything.
    peak = max(
        float(one["bytes"] + lost * one["by_category"]["activations"] + base)
        for one in found["peaks"].values()
    )
    flops = float(sum(found["flops"].values()))
    planned = step_flops(plan.job, role.pipeline_rank)
    return RoleResult(
        role=role,
        found=found,
        peak_bytes=peak,
        planned_bytes=memory.peak,
        verdict=verdict_of(peak, plan.memory.usable_bytes),
        differences=(
            *_of_memory(found, memory, peak, software),
            *_of_collectives(found, plan, role, software),
            FigureDifference(figure="flops", planned=planned, found=flops, whole=flops),
        ),
    )


def highest(found: Found) -> Found:
    """Return the moment at which the tensors of a role take the most."""
    peaks: dict[str, Found] = found["peaks"]
    return max(peaks.values(), key=lambda peak: peak["bytes"])


def _of_memory(
    found: Found, plan: RankMemory, peak: float, software: SoftwareModel
) -> list[FigureDifference]:
    """Compare what stays, what comes and goes at the highest moment, and the peak.

    What comes and goes is one: of two moments nearly as high the plan may take the other.
    """
    at_peak = highest(found)["by_category"]
    tensors = plan.activations / software.memory.fragmentation
    passes = plan.moments.passes - plan.activations + tensors
    staying = ("weights", "optimizer")
    pairs = {
        "weights": (plan.states.weights, at_peak["weights"]),
        "optimizer": (plan.states.master + plan.states.optimizer, at_peak["optimizer"]),
        "passing": (
            max(passes, plan.moments.update),
            sum(size for category, size in at_peak.items() if category not in staying),
        ),
        "peak": (plan.peak, peak),
    }
    return [
        FigureDifference(figure=f"{name}_bytes", planned=planned, found=seen, whole=peak)
        for name, (planned, seen) in pairs.items()
    ]


def _of_collectives(
    found: Found, plan: Plan, role: Role, software: SoftwareModel
) -> list[FigureDifference]:
    planned = sent_bytes(plan.job, role.pipeline_rank, software.speed)
    seen: Counter[str] = Counter()
    for call in found["collectives"]:
        # Groups that join other axes to data count under data, as in the plan.
        joins = "data" in call["axis"] or " x " in call["axis"]
        seen["data" if joins else call["axis"]] += call["sent_bytes"]
    whole = sum(seen.values())
    return [
        FigureDifference(
            figure=f"{axis}_sent_bytes",
            planned=planned.get(axis, 0.0),
            found=seen[axis],
            whole=whole,
        )
        for axis in ("tensor", "data", "expert", "context", "pipeline")
        if seen[axis] or axis in planned
    ]
