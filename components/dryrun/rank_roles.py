"""Dry run of each role of a recipe in its own process, and comparison with the plan.

Ranks of one stage differ only in data; if rows do not divide evenly, the first rank of every
axis has the most. Of equal stages, one with the highest planned peak runs.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from components.child_process import python_environment
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.planner import communication
from components.planner.experts import repeats_experts
from components.planner.job import BYTES, TrainingJob, job_from_recipe
from components.planner.memory import RankMemory, Verdict, fullest_of, verdict_of
from components.planner.passes import recompute_fraction
from components.planner.products import head_product, layer_products, mtp_product
from components.planner.result import Plan
from components.planner.software import SoftwareSpeed
from components.planner.time import averaged_bytes
from components.run.folder import RunFolder, create_run_folder
from components.versions import TORCH, read_installed_versions, release_of

_AT_A_TIME = 2
_MESSAGES_SINCE = (2, 11)  # first torch that sends fake tensors
_LAST_LINES = 12
_WORTH_NAMING = 0.05  # relative difference that is reported
_SMALL = 0.01  # smallest difference, as a fraction of the whole, that is reported

RoleTrace = dict[str, Any]
RoleKind = tuple[tuple[int, ...], bool, bool]  # the first fields of `Role`


class RoleError(Exception):
    """A role's process failed; the message names the role and ends with its last output."""


@dataclass(frozen=True)
class Role:
    """Role: pipeline ranks with the same work, and the rank that runs the dry run for them."""

    layers: tuple[int, ...]  # number in each of its stages
    first: bool  # has the embedding
    last: bool  # has the loss
    rank: int
    pipeline_rank: int
    stands_for: int  # number of ranks in the whole world

    @property
    def role_name(self) -> str:
        ends = ["first"] * self.first + ["last"] * self.last
        return f"{' and '.join(ends) or 'inner'}, {' + '.join(map(str, self.layers))} layers"


def roles_of(recipe: Recipe) -> tuple[Role, ...]:
    """List the roles in the order of the pipeline."""
    job, ranks_by_kind = job_from_recipe(recipe), defaultdict[RoleKind, list[int]](list)
    pipeline, stride = job.layout.pipeline, job.rank_groups.compute_stride("pipeline")
    for rank in range(pipeline):
        layers = tuple(job.layers_by_stage[stage] for stage in job.stages_of(rank))
        ranks_by_kind[layers, rank == 0, job.has_head(rank)].append(rank)
    ranks_per_stage = recipe.cluster.ranks // pipeline
    rows = ((kind, fullest_of(job, ranks), len(ranks)) for kind, ranks in ranks_by_kind.items())
    return tuple(
        Role(*kind, rank * stride, pipeline_rank=rank, stands_for=count * ranks_per_stage)
        for kind, rank, count in rows
    )


def rehearse_roles(recipe: Recipe, say: Callable[[str], None]) -> dict[Role, RoleTrace]:
    """Return the trace of each role's step, in the order of the pipeline.

    Raises RecipeError for DeepSpeed, and if this torch cannot run the layout without values;
    RoleError if a role's process failed or was killed.
    """
    if recipe.parallelism.engine != "mesh":
        raise RecipeError(
            "parallelism.engine",
            f"{recipe.parallelism.engine}, but a dry run cannot simulate its collectives",
            "set parallelism.engine=mesh: its memory and traffic are equal by ZeRO stage",
        )
    check_messages(recipe)
    roles = roles_of(recipe)
    with tempfile.TemporaryDirectory(prefix="dryrun-") as path:
        folder = create_run_folder(recipe, Path(path))
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            traces = pool.map(partial(_play, folder, say), roles)
            return dict(zip(roles, traces, strict=True))


def check_messages(recipe: Recipe) -> None:
    """Raise RecipeError for a pipeline in torch before 2.11: its messages need values."""
    torch = read_installed_versions().get(TORCH)
    if recipe.parallelism.pipeline > 1 and torch and release_of(torch) < _MESSAGES_SINCE:
        raise RecipeError(
            "parallelism.pipeline",
            f"{recipe.parallelism.pipeline} stages, but torch {torch} cannot rehearse stages",
            "use torch 2.11 or newer for a dry run, or use action=plan",
        )


def _play(folder: RunFolder, say: Callable[[str], None], role: Role) -> RoleTrace:
    program = [sys.executable, "-m", "components.dryrun.rehearsal"]
    process = subprocess.run(
        [*program, str(folder.path), str(role.rank)],
        env=python_environment(os.environ | {"OMP_NUM_THREADS": "1"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if (status := process.returncode) != 0:
        killed = f"signal {-status}, perhaps out of memory"
        ending = killed if status < 0 else f"status {status}"
        words = "\n".join(process.stderr.splitlines()[-_LAST_LINES:])
        raise RoleError(f"rank {role.rank} ({role.role_name}) ended with {ending}\n{words}")
    trace = folder.read_json(f"role-{role.rank}.json")
    say(f"rank {role.rank} ({role.role_name}): {trace['seconds']:.0f} s")
    return trace


def sent_bytes(job: TrainingJob, rank: int, speed: SoftwareSpeed) -> dict[str, float]:
    """Return the planned bytes that one pipeline rank sends, by axis."""
    layout = job.layout
    tensor = context = 0.0
    for kind, passed, repeated in job.layer_kinds(job.stages_of(rank)):
        collectives = job.microbatches * speed.tensor_collectives
        again, attention = recompute_fraction(kind)
        moved = communication.tensor_bytes(kind)
        tensor += (passed + repeated * again / 3) * collectives * moved
        moved = communication.context_bytes(kind)
        context += job.microbatches * (2 * passed + repeated * attention) * moved
    averaged = averaged_bytes(job, rank)
    sent = {
        "tensor": tensor if layout.tensor > 1 else 0.0,
        "expert": _between_experts(job, rank)
        + sum(scattered for axis, scattered, _ in averaged if axis == "expert"),
        "context": context,
        "pipeline": _between_stages(job, rank),
        "data": sum(sum(sent) for axis, *sent in averaged if axis != "expert"),
    }
    return {axis: count for axis, count in sent.items() if count}


def _between_experts(job: TrainingJob, rank: int) -> float:
    """Return the bytes of tokens and results of all passes, with recomputed passes' tokens."""
    if job.layout.expert == 1:
        return 0.0
    exchanges = sum(
        layers * communication.EXPERT_COLLECTIVES + recomputed * repeats_experts(job)
        for kind, layers, recomputed in job.layer_kinds(job.stages_of(rank))
        if kind.shape.mlp.num_experts
    )
    return job.microbatches * exchanges * communication.expert_bytes(job)


def _between_stages(job: TrainingJob, rank: int) -> float:
    """Return the bytes of hidden states, their gradients and a tied embedding's gradient."""
    layout, last, place = job.layout, len(job.layers_by_stage) - 1, job.stage_placement
    own_stages = set(job.stages_of(rank))
    neighbours = (other for stage in own_stages for other in (stage - 1, stage + 1))
    messages = sum(0 <= other <= last and other not in own_stages for other in neighbours)
    hidden = job.microbatch_tokens * job.shape.dim * BYTES[job.compute]
    hidden /= layout.tensor if layout.sequence_parallel else 1
    sent = job.microbatches * messages * hidden
    if job.shape.shares_ends and not place.has_both_ends and {0, last} & own_stages:
        rows = job.shape.padded_vocab_size / layout.tensor
        shards = layout.data_shard * layout.context if layout.zero else 1
        sent += rows * job.shape.dim * job.shard_gradient_bytes / shards
    return sent if layout.pipeline > 1 else 0.0


def step_flops(job: TrainingJob, rank: int) -> float:
    """Return the FLOPs of one rank's products, with unmasked attention and recomputation."""
    layout, layers = job.layout, 0.0
    for kind, count, recomputed in job.layer_kinds(job.stages_of(rank)):
        attention, mixer = kind.shape.attention, kind.shape.layer_type.mixer
        width = attention.num_heads * (attention.head_dim + kind.value_width) / layout.tensor
        core = 2.0 * width * job.sequence_length * job.microbatch_tokens * job.attention_passes
        core += mixer.scan_flops * job.microbatch_tokens / layout.tensor if mixer else 0
        rerun, products = (
            recompute_fraction(kind),
            sum(product.num_flops for product in layer_products(kind)),
        )
        layers += 3 * count * (products + core)
        layers += recomputed * (rerun[0] * products + rerun[1] * core)
    ends = (1 + job.mtp_depth) * head_product(job).num_flops
    ends += job.mtp_depth * mtp_product(job).num_flops
    head = job.has_head(rank)
    return job.microbatches * (layers + 3 * head * ends)


@dataclass(frozen=True)
class FigureDifference:
    """Difference of a figure between plan and dry run; the figure is a part of ``whole``."""

    figure: str
    planned: float
    found: float
    whole: float

    @property
    def is_named(self) -> bool:
        difference = abs(self.found - self.planned)
        return difference > _WORTH_NAMING * self.planned and difference > _SMALL * self.whole


@dataclass(frozen=True)
class RoleResult:
    """Result of one role: peak memory in dry run and plan, and the figures of both."""

    role: Role
    trace: RoleTrace
    peak_bytes: float
    planned_bytes: float
    verdict: Verdict
    differences: tuple[FigureDifference, ...]


def compare_role(role: Role, trace: RoleTrace, plan: Plan) -> RoleResult:
    """Compare one role with the plan of its pipeline rank."""
    software, memory = plan.software.memory, plan.memory.ranks[role.pipeline_rank]
    lost = software.fragmentation - 1
    # From the plan: the allocator's fragmentation of activations, and the base memory.
    peak = max(
        float(
            moment["bytes"] + lost * moment["by_category"]["activations"] + software.base_bytes
        )
        for moment in trace["peaks"].values()
    )
    flops = float(sum(trace["flops"].values()))
    differences = (
        *_of_memory(trace, memory, peak, software.fragmentation),
        *_of_collectives(trace, plan, role.pipeline_rank),
        FigureDifference("flops", step_flops(plan.job, role.pipeline_rank), flops, flops),
    )
    verdict = verdict_of(peak, plan.memory.usable_bytes)
    return RoleResult(role, trace, peak, memory.peak_bytes, verdict, differences)


def find_peak(trace: RoleTrace) -> RoleTrace:
    """Return the memory peak of a role: the moment with the most tensor bytes."""
    peaks: dict[str, RoleTrace] = trace["peaks"]
    return max(peaks.values(), key=lambda peak: peak["bytes"])


def _of_memory(
    trace: RoleTrace, plan: RankMemory, peak: float, fragmentation: float
) -> list[FigureDifference]:
    """Compare weights, optimizer state, transient memory at the peak, and the peak.

    Transient memory is one figure: of two moments with similar peaks the plan may take either.
    """
    at_peak = dict(find_peak(trace)["by_category"])
    weights, optimizer = at_peak.pop("weights"), at_peak.pop("optimizer")
    passes = plan.pass_bytes - plan.activations + plan.activations / fragmentation
    pairs = {
        "weights": (plan.states.weights, weights),
        "optimizer": (plan.states.master + plan.states.optimizer, optimizer),
        "passing": (max(passes, sum(plan.update)), sum(at_peak.values())),
        "peak": (plan.peak_bytes, peak),
    }
    return [FigureDifference(f"{name}_bytes", *pair, peak) for name, pair in pairs.items()]


def _of_collectives(trace: RoleTrace, plan: Plan, rank: int) -> list[FigureDifference]:
    planned = sent_bytes(plan.job, rank, plan.software.speed)
    sent: Counter[str] = Counter()
    for call in trace["collectives"]:
        # Groups that join data with other axes count as data, as in the plan.
        joins = "data" in call["axis"] or " x " in call["axis"]
        sent["data" if joins else call["axis"]] += call["sent_bytes"]
    whole = sum(sent.values())
    return [
        FigureDifference(f"{axis}_sent_bytes", planned.get(axis, 0.0), sent[axis], whole)
        for axis in ("tensor", "data", "expert", "context", "pipeline")
        if sent[axis] or axis in planned
    ]
