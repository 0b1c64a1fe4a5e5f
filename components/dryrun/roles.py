"""Dry run of the roles of a recipe, each in a process of its own, and what was planned for it.

Ranks of one stage differ in their data alone. Where rows do not divide evenly the first rank of
every axis holds the most; of equal stages one has the most microbatches in flight.
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
from components.versions import TORCH, installed, release_of

_AT_A_TIME = 2
_MESSAGES_SINCE = (2, 11)  # the torch that sends tensors without values
_LAST_LINES = 12
_WORTH_NAMING = 0.05  # a difference below it is not named
_SMALL = 0.01  # nor is one of a part that is less of the whole

Found = dict[str, Any]
RoleKind = tuple[tuple[int, ...], bool, bool]  # the first fields of `Role`


class RoleError(Exception):
    """The process of a role did not end well; the message names it and ends with its words."""


@dataclass(frozen=True)
class Role:
    """Pipeline ranks that do the same, and the rank of the world that plays it for them all."""

    layers: tuple[int, ...]  # of each of its stages
    first: bool  # has the embedding
    last: bool  # has the loss
    rank: int
    pipeline_rank: int
    stands_for: int  # ranks of the whole world

    @property
    def name(self) -> str:
        ends = ["first"] * self.first + ["last"] * self.last
        return f"{' and '.join(ends) or 'inner'}, {' + '.join(map(str, self.layers))} layers"


def roles_of(recipe: Recipe) -> tuple[Role, ...]:
    """List the roles in the order of the pipeline."""
    job, found = job_from_recipe(recipe), defaultdict[RoleKind, list[int]](list)
    pipeline, stride = job.layout.pipeline, job.groups.stride("pipeline")
    for rank in range(pipeline):
        layers = tuple(job.layers_by_stage[stage] for stage in job.stages_of(rank))
        found[layers, rank == 0, job.has_head(rank)].append(rank)
    each = recipe.cluster.ranks // pipeline
    played = ((kind, fullest_of(job, ranks), len(ranks)) for kind, ranks in found.items())
    return tuple(
        Role(*kind, rank * stride, pipeline_rank=rank, stands_for=count * each)
        for kind, rank, count in played
    )


def rehearse_roles(recipe: Recipe, say: Callable[[str], None]) -> dict[Role, Found]:
    """Return what each role's step takes, in the order of the pipeline.

    Raises:
        RecipeError: the layout is one that DeepSpeed drives, or that this torch cannot play.
        RoleError: a role's process failed, or was killed.
    """
    if recipe.parallelism.engine != "mesh":
        raise RecipeError(
            "parallelism.engine",
            f"{recipe.parallelism.engine}, whose own collectives no fake group stands for",
            "set parallelism.engine=mesh, which holds and sends the same by ZeRO stage",
        )
    check_messages(recipe)
    roles = roles_of(recipe)
    with tempfile.TemporaryDirectory(prefix="dryrun-") as path:
        folder = create_run_folder(recipe, Path(path))
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            found = pool.map(partial(_play, folder, say), roles)
            return dict(zip(roles, found, strict=True))


def check_messages(recipe: Recipe) -> None:
    """Refuse a pipeline where tensors without values cannot be sent.

    Raises:
        RecipeError: it is one, under torch before 2.11.
    """
    torch = installed().get(TORCH)
    if recipe.parallelism.pipeline > 1 and torch and release_of(torch) < _MESSAGES_SINCE:
        raise RecipeError(
            "parallelism.pipeline",
            f"{recipe.parallelism.pipeline} stages, which torch {torch} cannot rehearse",
            "use torch 2.11 or newer for a dry run, or ask action=plan",
        )


def _play(folder: RunFolder, say: Callable[[str], None], role: Role) -> Found:
    program = [sys.executable, "-m", "components.dryrun.rehearsal"]
    done = subprocess.run(
        [*program, str(folder.path), str(role.rank)],
        env=python_environment(os.environ | {"OMP_NUM_THREADS": "1"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if (status := done.returncode) != 0:
        killed = f"signal {-status}, as for want of memory"
        how = killed if status < 0 else f"status {status}"
        words = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        raise RoleError(f"rank {role.rank} ({role.name}) ended with {how}\n{words}")
    found = folder.read_json(f"role-{role.rank}.json")
    say(f"rank {role.rank} ({role.name}): {found['seconds']:.0f} s")
    return found


def sent_bytes(job: TrainingJob, rank: int, speed: SoftwareSpeed) -> dict[str, float]:
    """Count what the plan has one pipeline rank send, by axis."""
    layout, again = job.layout, recompute_fraction(job)
    passed = job.layers_of(rank) * job.microbatches
    repeated = job.recomputed_of(rank) * job.microbatches
    tensor = speed.tensor_collectives * communication.tensor_bytes(job)
    averaged = averaged_bytes(job, rank)
    sent = {
        "tensor": (passed + repeated * again[0] / 3) * tensor if layout.tensor > 1 else 0.0,
        "expert": _between_experts(job, rank)
        + sum(scattered for axis, scattered, _ in averaged if axis == "expert"),
        "context": (2 * passed + repeated * again[1]) * communication.context_bytes(job),
        "pipeline": _between_stages(job, rank),
        "data": sum(sum(sent) for axis, *sent in averaged if axis != "expert"),
    }
    return {axis: count for axis, count in sent.items() if count}


def _between_experts(job: TrainingJob, rank: int) -> float:
    """Count tokens and results of all passes, and tokens once more for a repeated one."""
    if job.layout.expert == 1:
        return 0.0
    # The leading layers of a model have none.
    _, layers, again = job.layer_kinds(job.stages_of(rank))[0]
    ways = layers * communication.EXPERT_COLLECTIVES + again * repeats_experts(job)
    return job.microbatches * ways * communication.expert_bytes(job)


def _between_stages(job: TrainingJob, rank: int) -> float:
    """Count hidden states and their gradients, and a shared embedding's gradient by shards."""
    layout, last, place = job.layout, len(job.layers_by_stage) - 1, job.placement
    here = set(job.stages_of(rank))
    neighbours = (other for stage in here for other in (stage - 1, stage + 1))
    messages = sum(0 <= other <= last and other not in here for other in neighbours)
    hidden = job.microbatch_tokens * job.shape.dim * BYTES[job.compute]
    hidden /= layout.tensor if layout.sequence_parallel else 1
    sent = job.microbatches * messages * hidden
    if job.shape.shares_ends and not place.has_both_ends and {0, last} & here:
        rows = job.shape.padded_vocab_size / layout.tensor
        shards = layout.data_shard * layout.context if layout.zero else 1
        sent += rows * job.shape.dim * job.shard_gradient_bytes / shards
    return sent if layout.pipeline > 1 else 0.0


def step_flops(job: TrainingJob, rank: int) -> float:
    """Count FLOPs of one rank's products, attention in full, with what is computed twice.

    A layer's by `components.planner.products`, forward once and backward twice.
    """
    layout, layers = job.layout, 0.0
    attention = job.shape.attention
    width = attention.num_heads * (attention.head_dim + job.value_width) / layout.tensor
    core = 2.0 * width * job.sequence_length * job.microbatch_tokens * job.attention_passes
    for kind, count, recomputed in job.layer_kinds(job.stages_of(rank)):
        again, products = (
            recompute_fraction(kind),
            sum(one.flops for one in layer_products(kind)),
        )
        layers += 3 * count * (products + core)
        layers += recomputed * (again[0] * products + again[1] * core)
    ends = (1 + job.mtp_depth) * head_product(job).flops
    ends += job.mtp_depth * mtp_product(job).flops
    head = job.has_head(rank)
    return job.microbatches * (layers + 3 * head * ends)


@dataclass(frozen=True)
class FigureDifference:
    """A figure of the plan beside that of the dry run, which is a part of ``whole``."""

    figure: str
    planned: float
    found: float
    whole: float

    @property
    def is_named(self) -> bool:
        apart = abs(self.found - self.planned)
        return apart > _WORTH_NAMING * self.planned and apart > _SMALL * self.whole


@dataclass(frozen=True)
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
    software, memory = plan.software.memory, plan.memory.ranks[role.pipeline_rank]
    lost = software.fragmentation - 1
    # By the plan, what an allocator loses between activations and what is there before all.
    peak = max(
        float(one["bytes"] + lost * one["by_category"]["activations"] + software.base_bytes)
        for one in found["peaks"].values()
    )
    flops = float(sum(found["flops"].values()))
    differences = (
        *_of_memory(found, memory, peak, software.fragmentation),
        *_of_collectives(found, plan, role.pipeline_rank),
        FigureDifference("flops", step_flops(plan.job, role.pipeline_rank), flops, flops),
    )
    verdict = verdict_of(peak, plan.memory.usable_bytes)
    return RoleResult(role, found, peak, memory.peak, verdict, differences)


def highest(found: Found) -> Found:
    """Return the moment at which the tensors of a role take the most."""
    peaks: dict[str, Found] = found["peaks"]
    return max(peaks.values(), key=lambda peak: peak["bytes"])


def _of_memory(
    found: Found, plan: RankMemory, peak: float, fragmentation: float
) -> list[FigureDifference]:
    """Compare what stays, what comes and goes at the highest moment, and the peak.

    What comes and goes is one: of two moments nearly as high the plan may take the other.
    """
    at_peak = dict(highest(found)["by_category"])
    weights, optimizer = at_peak.pop("weights"), at_peak.pop("optimizer")
    passes = plan.moments.passes - plan.activations + plan.activations / fragmentation
    pairs = {
        "weights": (plan.states.weights, weights),
        "optimizer": (plan.states.master + plan.states.optimizer, optimizer),
        "passing": (max(passes, plan.moments.update), sum(at_peak.values())),
        "peak": (plan.peak, peak),
    }
    return [FigureDifference(f"{name}_bytes", *pair, peak) for name, pair in pairs.items()]


def _of_collectives(found: Found, plan: Plan, rank: int) -> list[FigureDifference]:
    planned = sent_bytes(plan.job, rank, plan.software.speed)
    seen: Counter[str] = Counter()
    for call in found["collectives"]:
        # Groups that join other axes to data count under data, as in the plan.
        joins = "data" in call["axis"] or " x " in call["axis"]
        seen["data" if joins else call["axis"]] += call["sent_bytes"]
    whole = sum(seen.values())
    return [
        FigureDifference(f"{axis}_sent_bytes", planned.get(axis, 0.0), seen[axis], whole)
        for axis in ("tensor", "data", "expert", "context", "pipeline")
        if seen[axis] or axis in planned
    ]
