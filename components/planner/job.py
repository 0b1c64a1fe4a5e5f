"""What the planner needs to know of a run, and on which nodes its ranks lie.

Ranks fill nodes in their order. A rank's coordinates are the digits of its number in the mixed
base of the degrees, the first axis of ``rank_order`` being the slowest, as the device mesh
deals them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from components.config.layout import AXES
from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.rules.attention import attention_backends, attention_passes
from components.config.rules.engine import FLOAT8
from components.config.schema.sections import Parallelism, Precision
from components.config.stages import StagePlacement, splits_backward, style_of

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
Recompute = Literal["none", "selective", "full"] | tuple[str, ...]
ExpertPath = Literal["grouped", "sorted", "loop"]


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Degrees, and what follows from them for one rank.

    ``data`` counts replicas of the experts; dense parameters see data x expert replicas.
    ``layers`` are the layers of each stage, ``head_stage`` is the one with the last product; it
    has ``mtp_depth`` layers more, which predict further tokens in training.
    With ``overlap`` data ranks' collectives, in buckets, go under passes.
    """

    data: int
    data_shard: int
    tensor: int
    pipeline: int
    expert: int
    context: int
    zero: int
    overlap: bool
    bucket_elements: int
    expert_aware: bool
    expert_dispatch: str
    expert_overlap: int
    expert_bound: float | None
    sequence_parallel: bool
    schedule: str
    splits_backward: bool
    stages_per_rank: int
    recompute_every: int
    layers: tuple[int, ...]
    head_stage: int
    rank_order: tuple[str, ...]
    devices_per_node: int
    mtp_depth: int = 0

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline * self.expert * self.context

    @property
    def padding(self) -> float:
        """How many rows experts here get for each pair of token and expert at even load."""
        return min(self.expert_bound or 1.0, float(self.expert))

    @cached_property
    def layer_ends(self) -> tuple[int, ...]:
        """Layers before each stage, and all of them."""
        return tuple(accumulate(self.layers, initial=0))

    @cached_property
    def placement(self) -> StagePlacement:
        """Which pipeline rank has which stages."""
        return StagePlacement(
            pipeline=self.pipeline,
            stages_per_rank=self.stages_per_rank,
            style=style_of(self.schedule),
        )

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """List the stages of a pipeline rank."""
        return self.placement.stages_of(rank)

    def layers_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank."""
        ranges = self.layers_between(self.stages_of(rank))
        return sum(end - first for first, end in ranges)

    def layers_between(self, stages: Iterable[int]) -> list[tuple[int, int]]:
        """Give the first layer of each of these stages and the one after its last."""
        ends = self.layer_ends
        return [
            (ends[one], ends[one + 1] + (self.mtp_depth if one == self.head_stage else 0))
            for one in stages
        ]

    def recomputed_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank whose number ``recompute_every`` divides."""
        ranges = self.layers_between(self.stages_of(rank))
        return sum(self.recomputed_of_range(*one) for one in ranges)

    def recomputed_of_range(self, first: int, end: int) -> int:
        """Count the same of the layers from ``first`` to ``end``, which is not among them."""
        return -(-end // self.recompute_every) - -(-first // self.recompute_every)


class LayerKind(NamedTuple):
    """So many layers that are alike, those of them that are recomputed, and a job of such."""

    job: "TrainingJob"
    layers: int
    recomputed: int


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training step: the model, the layout, the batch and the precision.

    Bytes are of one number: weights, the gradients of a microbatch that stay, the buffer that
    adds them up beside (each 0 if there is none), the mean that an optimizer's shard gets (0 if
    it reads the sums), the master copy and all moments of the optimizer. ``cast_bytes`` are
    kept of each weight for each microbatch in flight. ``reduce_bytes`` are sent of each
    gradient, ``gather_bytes`` of each weight; the gradient that a weight gets has as many.
    A checkpoint has ``saved_bytes``. ``pads_values`` says that attention's kernel gets values
    as wide as keys. ``even_load`` says that routing is forced to be uniform, ``muon`` that
    hidden matrices have one moment. Layers with a window may have another kernel:
    ``attention_passes`` is then the mean, and one that is not fused counts for all.
    """

    shape: DecoderSpec
    layout: ParallelLayout
    sequence_length: int
    microbatch_sequences: int
    microbatches: int
    compute: str
    weight_bytes: int
    gradient_bytes: int
    accumulate_bytes: int
    shard_gradient_bytes: int
    master_bytes: int
    moment_bytes: int
    cast_bytes: int
    reduce_bytes: int
    gather_bytes: int
    saved_bytes: int
    recompute: Recompute
    dropout: bool
    fused_attention: bool
    attention_passes: float
    pads_values: bool = False
    compiled: bool = False
    expert_path: ExpertPath = "grouped"
    even_load: bool = False
    muon: bool = False

    @property
    def tokens_per_step(self) -> int:
        replicas = self.layout.data * self.layout.expert
        sequences = self.microbatch_sequences * self.microbatches * replicas
        return sequences * self.sequence_length

    @property
    def microbatch_tokens(self) -> float:
        """Tokens of one microbatch on one context rank."""
        return self.microbatch_sequences * self.sequence_length / self.layout.context

    @property
    def value_width(self) -> int:
        """Width of a head's values as the kernel takes them."""
        attention = self.shape.attention
        return attention.head_dim if self.pads_values else attention.values

    @cached_property
    def dense(self) -> "TrainingJob":
        """The same with nothing but layers like the leading ones, which have no experts."""
        replicas = self.layout.data * self.layout.expert
        layout = replace(self.layout, data=replicas, expert=1)
        return replace(self, shape=self.shape.dense, layout=layout)

    def kinds_of(self, stages: Iterable[int]) -> tuple[LayerKind, ...]:
        """Count the layers of these stages: the leading ones, if there are, and all others."""
        leading, count = self.shape.leading_layers, self.layout.recomputed_of_range
        parts = self.layout.layers_between(stages)
        if not leading:
            again = sum(count(*part) for part in parts)
            return (LayerKind(self, sum(b - a for a, b in parts), again),)
        others = [(max(first, leading), max(end, leading)) for first, end in parts]
        firsts = [(min(first, leading), min(end, leading)) for first, end in parts]
        kinds = ((self, others), (self.dense, firsts))
        return tuple(
            LayerKind(job, sum(b - a for a, b in ranges), sum(count(*one) for one in ranges))
            for job, ranges in kinds
        )


def job_of(recipe: Recipe) -> TrainingJob:
    """Read a settled recipe; what it publishes, assumes and is called stays unread."""
    parallelism = recipe.parallelism
    layers = recipe.derived.layers_by_stage
    devices = recipe.cluster.devices_per_node
    kernels = attention_backends(recipe).values()
    return TrainingJob(
        shape=recipe.shape,
        layout=layout_of(
            parallelism,
            layers=layers,
            devices_per_node=devices,
            mtp_depth=recipe.shape.mtp_depth,
        ),
        sequence_length=recipe.budget.sequence_length,
        microbatch_sequences=parallelism.microbatch_sequences,
        microbatches=recipe.derived.microbatches_per_step,
        compute=_computed(recipe.precision),
        **number_bytes(recipe.precision, parallelism, moments_of(recipe.optimizer)),
        recompute=parallelism.recompute,
        dropout=bool(recipe.model.get("dropout")),
        fused_attention=all(order[:1] != ("math",) for order in kernels),
        attention_passes=attention_passes(recipe),
        pads_values=any(order[:1] != ("flex",) for order in kernels),
        compiled=parallelism.compile != "none",
        expert_path=_expert_path(recipe),
        even_load=recipe.model["mlp"].get("routing") == "uniform",
        muon="newton_schulz_steps" in recipe.optimizer,
    )


def _expert_path(recipe: Recipe) -> ExpertPath:
    """Choose as `components.model.moe.Mixture` does, by the cluster's kind of device."""
    if recipe.model["mlp"].get("path") == "loop":
        return "loop"
    # Torch has no grouped products for Intel's devices up to 2.14.
    fast = recipe.cluster.device == "cuda" and _computed(recipe.precision) == "bfloat16"
    return "grouped" if fast else "sorted"


def _computed(precision: Precision) -> str:
    # No measured step stands behind float8: it is planned as what it is built upon.
    return "bfloat16" if precision.compute in {"auto", FLOAT8} else precision.compute


def moments_of(optimizer: Mapping[str, Any]) -> int:
    """Count the means that an optimizer keeps of a weight's gradients and of their squares."""
    return sum(f"beta{number}" in optimizer for number in (1, 2, 3))


def number_bytes(
    precision: Precision, parallelism: Parallelism, moments: int
) -> dict[str, Any]:
    """Name the bytes of each number of a job, as our two engines hold it."""
    if parallelism.engine == "mesh":
        return _on_mesh(precision, parallelism.zero, moments)
    return _in_deepspeed(precision, moments)


def _on_mesh(precision: Precision, zero: int, moments: int) -> dict[str, Any]:
    """Follow `components.distributed.data`: a weight's own gradient stays for a moment only.

    ZeRO 2 and 3 add up in the optimizer's shards; those of ZeRO 3 are the weights.
    """
    compute = BYTES[_computed(precision)]
    exact = precision.compute == FLOAT8  # torchao rounds by itself
    automatic = BYTES["float32"] if exact else compute
    weights = automatic if precision.weights == "auto" else BYTES[precision.weights]
    finer = max(weights, BYTES["float32"])
    master = finer if precision.master == "auto" else BYTES[precision.master]
    rounded = zero < 3 and master > weights
    return {
        "weight_bytes": master if zero == 3 else weights,
        "gradient_bytes": 0,
        "accumulate_bytes": BYTES[precision.accumulate] if zero < 2 else master,
        "shard_gradient_bytes": master,
        "master_bytes": master if rounded else 0,
        "moment_bytes": moments * master,
        "cast_bytes": compute if compute < weights else 0,
        "reduce_bytes": BYTES[precision.reduce],
        "gather_bytes": weights,
        "saved_bytes": rounded * weights + (1 + moments) * master,
    }


def _in_deepspeed(precision: Precision, moments: int) -> dict[str, Any]:
    """DeepSpeed computes with rounded weights beside its own float32 copy."""
    compute = _computed(precision)
    held = BYTES[compute]
    exact = max(held, BYTES["float32"])
    added_up_beside = held < exact and precision.accumulate != compute
    return {
        "weight_bytes": held,
        "gradient_bytes": held,
        "accumulate_bytes": BYTES[precision.accumulate] if added_up_beside else 0,
        "shard_gradient_bytes": 0,
        "master_bytes": exact if held < exact else 0,
        "moment_bytes": moments * exact,
        "cast_bytes": 0,
        "reduce_bytes": BYTES[precision.reduce],
        "gather_bytes": held,
        "saved_bytes": (1 + moments) * exact,
    }


def layout_of(
    degrees: Parallelism, *, layers: tuple[int, ...], devices_per_node: int, mtp_depth: int
) -> ParallelLayout:
    """Read the degrees of a settled recipe, ``layers`` being those of each stage."""
    as_in_the_recipe = ParallelLayout.__annotations__.keys() & Parallelism.model_fields
    values = {name: getattr(degrees, name) for name in as_in_the_recipe}
    values["overlap"] = degrees.overlap and degrees.engine == "mesh"
    values["stages_per_rank"] = StagePlacement.of(degrees).stages_per_rank
    values["splits_backward"] = splits_backward(degrees)
    head_stage = len(layers) - 1
    return ParallelLayout(
        **values,
        layers=layers,
        head_stage=head_stage,
        devices_per_node=devices_per_node,
        mtp_depth=mtp_depth,
    )


class Device(NamedTuple):
    """One rank; ``first_copy`` holds of those with the data coordinate 0."""

    rank: int
    coordinates: dict[str, int]

    @property
    def first_copy(self) -> bool:
        return self.coordinates["data"] == 0


class Node(NamedTuple):
    """The devices of one node, by its number."""

    number: int
    devices: tuple[Device, ...]


def coordinates(layout: ParallelLayout, rank: int) -> dict[str, Any]:
    """Return the place of a rank on each axis."""
    places = dict.fromkeys(AXES, 0)
    for axis in reversed(layout.rank_order):
        rank, places[axis] = divmod(rank, getattr(layout, axis))
    return places


def nodes_of_first_copy(layout: ParallelLayout) -> tuple[Node, ...]:
    """List the nodes that hold ranks of the first copy; other copies may share them."""
    per_node = layout.devices_per_node

    def node(number: int) -> Node:
        ranks = range(number * per_node, (number + 1) * per_node)
        return Node(number, tuple(Device(rank, coordinates(layout, rank)) for rank in ranks))

    return tuple(map(node, sorted({rank // per_node for rank in _first_copy(layout)})))


def _first_copy(layout: ParallelLayout) -> list[int]:
    """Go through one rank in as many as there are copies, instead of through all."""
    ranks = [0]
    stride = 1
    for axis in reversed(layout.rank_order):
        degree = getattr(layout, axis)
        if axis != "data":
            ranks = [rank + place * stride for place in range(degree) for rank in ranks]
        stride *= degree
    return ranks


def label(device: Device, layout: ParallelLayout, between: str) -> str:
    """Write the coordinates on the axes that the layout uses, by their first letters."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    return between.join(f"{axis[0]}{device.coordinates[axis]}" for axis in used) or "all"


def meaning(layout: ParallelLayout) -> str:
    """Describe what the letters mean and how many of each there are."""
    used = [axis for axis in AXES if getattr(layout, axis) > 1]
    return ", ".join(f"{axis[0]} {axis} of {getattr(layout, axis):,}" for axis in used)
