"""What the planner needs to know of a run, from a recipe or from a measured row."""

from dataclasses import dataclass
from typing import Literal

from components.config.rules.engine import FLOAT8
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.config.shape import ModelShape

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
Recompute = Literal["none", "full"] | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Degrees, and what follows from them for one rank.

    ``data`` counts replicas of the experts; dense parameters see data x expert replicas.
    ``layers`` are the layers of each stage, ``head_stage`` is the one with the last product.
    """

    data: int
    data_shard: int
    tensor: int
    pipeline: int
    expert: int
    context: int
    zero: int
    expert_aware: bool
    expert_overlap: int
    sequence_parallel: bool
    schedule: str
    stages_per_rank: int
    layers: tuple[int, ...]
    head_stage: int
    rank_order: tuple[str, ...]
    devices_per_node: int

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline * self.expert * self.context


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training step: the model, the layout, the batch and the precision.

    Bytes are of one number: weights, the gradients of a microbatch, the buffer that adds them
    up beside (0 if they add up in place), the master copy and both moments of the optimizer.
    ``cast_bytes`` are kept of each weight for each microbatch in flight, ``reduce_bytes`` sent
    of each gradient.
    """

    shape: ModelShape
    layout: ParallelLayout
    sequence_length: int
    microbatch_sequences: int
    microbatches: int
    compute: str
    weight_bytes: int
    gradient_bytes: int
    accumulate_bytes: int
    master_bytes: int
    moment_bytes: int
    cast_bytes: int
    reduce_bytes: int
    recompute: Recompute
    dropout: bool
    fused_attention: bool

    @property
    def tokens_per_step(self) -> int:
        replicas = self.layout.data * self.layout.expert
        sequences = self.microbatch_sequences * self.microbatches * replicas
        return sequences * self.sequence_length

    @property
    def microbatch_tokens(self) -> float:
        """Tokens of one microbatch on one context rank."""
        return self.microbatch_sequences * self.sequence_length / self.layout.context


def job_of(recipe: Recipe) -> TrainingJob:
    """Read a settled recipe; what it publishes, assumes and is called stays unread."""
    precision, shape = recipe.precision, recipe.shape
    # No measured step stands behind float8: it is planned as what it is built upon.
    compute = "bfloat16" if precision.compute in {"auto", FLOAT8} else precision.compute
    sizes = _sizes(recipe.parallelism.engine, compute, precision.accumulate)
    return TrainingJob(
        shape=shape,
        layout=layout_of(
            recipe.parallelism,
            layers=recipe.derived.layers_by_stage,
            devices_per_node=recipe.cluster.devices_per_node,
        ),
        sequence_length=recipe.budget.sequence_length,
        microbatch_sequences=recipe.parallelism.microbatch_sequences,
        microbatches=recipe.derived.microbatches_per_step,
        compute=compute,
        **sizes,
        reduce_bytes=BYTES[precision.reduce],
        recompute=recipe.parallelism.recompute,
        dropout=bool(recipe.model.get("dropout")),
        fused_attention=True,
    )


def _sizes(engine: str, compute: str, accumulate: str) -> dict[str, int]:
    """Count bytes of each number as our two engines hold it.

    On the mesh, weights, gradients and state stay float32; each microbatch casts the weights
    for itself, and its graph keeps them (`components.engine.microbatch_forward`). DeepSpeed
    computes with rounded weights beside its own float32 copy.
    """
    exact = max(BYTES[compute], BYTES["float32"])
    low = BYTES[compute] < exact
    if engine == "mesh" or not low:
        return {
            "weight_bytes": exact,
            "gradient_bytes": exact,
            "accumulate_bytes": 0,
            "master_bytes": 0,
            "moment_bytes": 2 * exact,
            "cast_bytes": BYTES[compute] if low else 0,
        }
    return {
        "weight_bytes": BYTES[compute],
        "gradient_bytes": BYTES[compute],
        "accumulate_bytes": BYTES[accumulate] if accumulate != compute else 0,
        "master_bytes": exact,
        "moment_bytes": 2 * exact,
        "cast_bytes": 0,
    }


def layout_of(
    degrees: Parallelism, *, layers: tuple[int, ...], devices_per_node: int
) -> ParallelLayout:
    """Read the degrees of a settled recipe, ``layers`` being those of each stage."""
    return ParallelLayout(
        data=degrees.data,
        data_shard=degrees.data_shard,
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        expert=degrees.expert,
        context=degrees.context,
        zero=degrees.zero,
        expert_aware=degrees.expert_aware,
        expert_overlap=degrees.expert_overlap,
        sequence_parallel=degrees.sequence_parallel,
        schedule=degrees.schedule,
        stages_per_rank=degrees.stages_per_rank if degrees.pipeline > 1 else 1,
        layers=layers,
        head_stage=len(layers) - 1,
        rank_order=degrees.rank_order,
        devices_per_node=devices_per_node,
    )
