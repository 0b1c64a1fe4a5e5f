"""Training job: what the planner reads from a recipe, and the layers of each rank."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Self

from components.config.model_spec.decoder import DecoderSpec
from components.config.rank_groups import RankGroups
from components.config.recipe import Recipe
from components.config.rules.attention import attention_backends, attention_passes
from components.config.rules.engine import FLOAT8
from components.config.schema.sections import DEEPSPEED_BUCKET, Parallelism, Precision
from components.config.stages import StagePlacement, splits_backward

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
ExpertPath = Literal["grouped", "sorted", "loop"]


class LayerKind(NamedTuple):
    """Group of equal layers: a job with only such layers, their number, how many recompute."""

    job: "TrainingJob"
    layers: int
    recomputed: int


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training step: the model, the layout, the batch and the precision.

    ``head_stage`` has the head and the ``mtp_depth`` additional layers, which predict further
    tokens in training. ``splits_backward``: weight gradients have passes of their own.

    Bytes are per number: the weights, the gradients of a microbatch that stay, the buffer that
    accumulates them (each 0 if absent), the mean that an optimizer's shard reads (0 if it reads
    the sums), the master copy, and all moments of the optimizer. ``cast_bytes`` count for each
    weight and microbatch in flight. ``reduce_bytes`` are sent per gradient, ``gather_bytes``
    per weight; a weight's own gradient also has ``gather_bytes``.

    ``uses_sdpa``: attention is torch's scaled dot product, with values as wide as keys, and one
    call for each of a context rank's two chunks. ``even_load``: routing is uniform. ``muon``:
    hidden matrices have one moment. If layers with a window use another kernel,
    ``attention_passes`` is the mean, and a single unfused kernel makes all count as unfused.
    """

    shape: DecoderSpec
    layout: Parallelism
    devices_per_node: int
    layers_by_stage: tuple[int, ...]
    head_stage: int
    mtp_depth: int = 0
    splits_backward: bool = False
    sequence_length: int
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
    dropout: bool
    fused_attention: bool
    attention_passes: float
    uses_sdpa: bool = False
    expert_path: ExpertPath = "grouped"
    even_load: bool = False
    muon: bool = False

    @property
    def tokens_per_step(self) -> int:
        sequences = (
            self.layout.microbatch_sequences * self.microbatches * self.layout.num_replicas
        )
        return sequences * self.sequence_length

    @property
    def microbatch_tokens(self) -> float:
        """Tokens of one microbatch on one context rank."""
        sequences = self.layout.microbatch_sequences
        return sequences * self.sequence_length / self.layout.context

    @property
    def value_width(self) -> int:
        """Width of a head's values in the attention kernel."""
        attention = self.shape.attention
        return attention.head_dim if self.uses_sdpa else attention.value_width

    @property
    def expert_padding(self) -> float:
        """Rows that local experts process per (token, expert) pair, at even load."""
        return min(self.layout.expert_capacity_factor or 1.0, float(self.layout.expert))

    @property
    def has_overlap(self) -> bool:
        """Whether bucketed collectives of data ranks overlap with passes."""
        layout = self.layout
        if layout.engine == "deepspeed":
            return layout.deepspeed is not None and layout.deepspeed.overlap_comm
        return layout.overlap

    @property
    def bucket_elements(self) -> int:
        """Number of elements in one gradient collective."""
        layout = self.layout
        if layout.engine == "deepspeed":
            return layout.deepspeed.reduce_bucket_size if layout.deepspeed else DEEPSPEED_BUCKET
        return layout.bucket_elements

    @property
    def rank_groups(self) -> RankGroups:
        return RankGroups(self.layout, self.devices_per_node)

    @cached_property
    def stage_placement(self) -> StagePlacement:
        return StagePlacement.from_degrees(self.layout)

    @cached_property
    def dense_job(self) -> Self:
        """The same job with only leading layers, which have no experts."""
        job = self.with_layout(data=self.layout.num_replicas, expert=1)
        shape = self.shape.model_copy(update={"mlp": self.shape.dense_mlp, "dense_mlp": None})
        return replace(job, shape=shape)

    def with_layout(self, **changes: object) -> Self:
        """Return the job with other values of layout keys, without validation."""
        return replace(self, layout=self.layout.model_copy(update=changes))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """List the stages of a pipeline rank."""
        return self._stages_by_rank[rank]

    def has_head(self, rank: int) -> bool:
        return self.head_stage in self.stages_of(rank)

    @cached_property
    def equal_ranks(self) -> list[list[int]]:
        """Groups of pipeline ranks with equal work and memory. The first rank is separate."""
        groups = defaultdict[tuple[object, ...], list[int]](list)
        for rank in range(self.layout.pipeline):
            layers: tuple[object, ...] = self.layers_of(rank), self.recomputed_of(rank)
            if self.shape.pattern is not None:
                layers = tuple(kind[1:] for kind in self.layer_kinds(self.stages_of(rank)))
            groups[*layers, rank == 0, self.has_head(rank)].append(rank)
        return list(groups.values())

    def layers_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank."""
        return self._layers_by_rank[rank][0]

    def recomputed_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank that recompute, if any layer does."""
        return self._layers_by_rank[rank][1]

    def layer_kinds(self, stages: Iterable[int]) -> tuple[LayerKind, ...]:
        """Return the layer kinds of these stages, with the leading layers last."""
        if self.shape.pattern is not None:
            return self._pattern_kinds(stages)
        spans, leading = self._layer_ranges(stages), self.shape.leading_layers
        later = [range(max(span.start, leading), max(span.stop, leading)) for span in spans]
        kinds = [(self, later)]
        if leading:
            first = [range(min(span.start, leading), min(span.stop, leading)) for span in spans]
            kinds.append((self.dense_job, first))
        return tuple(
            LayerKind(job, sum(map(len, parts)), sum(map(self._recomputed, parts)))
            for job, parts in kinds
        )

    def _pattern_kinds(self, stages: Iterable[int]) -> tuple[LayerKind, ...]:
        layers = [layer for span in self._layer_ranges(stages) for layer in span]
        every, shape = self.layout.recompute_every, self.shape
        indices = defaultdict[object, list[int]](list)
        for layer in layers:
            indices[shape.kind_of(layer)].append(layer)
        return tuple(
            LayerKind(job, len(indices[kind]), sum(n % every == 0 for n in indices[kind]))
            for kind, job in self._job_by_kind.items()
        )

    @cached_property
    def _job_by_kind(self) -> Mapping[object, Self]:
        """One job for each kind of layer; a kind without experts has no expert ranks."""
        dense = self.with_layout(data=self.layout.num_replicas, expert=1)
        return {
            kind: replace(self if shape.mlp.num_experts else dense, shape=shape)
            for kind, shape in self.shape.kind_shapes.items()
        }

    # A layout search reads these many times for each job.
    @cached_property
    def _stages_by_rank(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(self.stage_placement.stages_of, range(self.layout.pipeline)))

    @cached_property
    def _layers_by_rank(self) -> tuple[tuple[int, int], ...]:
        ranges = map(self._layer_ranges, self._stages_by_rank)
        return tuple((sum(map(len, own)), sum(map(self._recomputed, own))) for own in ranges)

    @cached_property
    def _stage_ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.layers_by_stage, initial=0))

    def _layer_ranges(self, stages: Iterable[int]) -> list[range]:
        ends, head, depth = self._stage_ends, self.head_stage, self.mtp_depth
        return [
            range(ends[stage], ends[stage + 1] + (depth if stage == head else 0))
            for stage in stages
        ]

    def _recomputed(self, layers: range) -> int:
        """Count the layers with an index that is a multiple of ``recompute_every``."""
        every = self.layout.recompute_every
        return -(-layers.stop // every) - -(-layers.start // every)


def job_from_recipe(recipe: Recipe) -> TrainingJob:
    """Read a training job from a resolved recipe."""
    parallelism = recipe.parallelism
    layers = recipe.derived_numbers.layers_by_stage
    kernels = attention_backends(recipe).values()
    return TrainingJob(
        shape=recipe.decoder_spec,
        layout=parallelism,
        devices_per_node=recipe.cluster.devices_per_node,
        layers_by_stage=layers,
        head_stage=len(layers) - 1,
        mtp_depth=recipe.decoder_spec.mtp_depth,
        splits_backward=splits_backward(parallelism),
        sequence_length=recipe.budget.sequence_length,
        microbatches=recipe.derived_numbers.microbatches_per_step,
        compute=_computed(recipe.precision),
        **number_bytes(recipe.precision, parallelism, moments_of(recipe.optimizer)),
        dropout=bool(recipe.model.get("dropout")),
        fused_attention=all(order[:1] != ("math",) for order in kernels),
        attention_passes=attention_passes(recipe),
        uses_sdpa=any(order[:1] != ("flex",) for order in kernels),
        expert_path=_expert_path(recipe),
        even_load=recipe.model["mlp"].get("routing") == "uniform",
        muon="newton_schulz_steps" in recipe.optimizer,
    )


def _expert_path(recipe: Recipe) -> ExpertPath:
    """Return the expert path that `components.model.moe.Mixture` chooses on this device."""
    if recipe.model["mlp"].get("path") == "loop":
        return "loop"
    # Torch up to 2.14 has no grouped products for Intel devices.
    fast = recipe.cluster.device == "cuda" and _computed(recipe.precision) == "bfloat16"
    return "grouped" if fast else "sorted"


def _computed(precision: Precision) -> str:
    # No measurements exist for float8: the planner treats it as its base type.
    return "bfloat16" if precision.compute in {"auto", FLOAT8} else precision.compute


def moments_of(optimizer: Mapping[str, Any]) -> int:
    """Count the optimizer's moments: means of a weight's gradients and of their squares."""
    return sum(f"beta{number}" in optimizer for number in (1, 2, 3))


def number_bytes(
    precision: Precision, parallelism: Parallelism, moments: int
) -> dict[str, Any]:
    """Return the bytes per number of a job as the two engines store them."""
    if parallelism.engine == "mesh":
        return _on_mesh(precision, parallelism.zero, moments)
    return _in_deepspeed(precision, moments)


def _on_mesh(precision: Precision, zero: int, moments: int) -> dict[str, Any]:
    """Return the bytes per number as in `components.distributed.data`.

    A weight's own gradient exists only briefly. ZeRO 2 and 3 accumulate in the optimizer's
    shards. The shards of ZeRO 3 are the weights.
    """
    compute = BYTES[_computed(precision)]
    exact = precision.compute == FLOAT8  # torchao rounds on its own
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
    """Return the bytes per number of DeepSpeed: rounded weights and a float32 copy."""
    compute = _computed(precision)
    width = BYTES[compute]
    exact = max(width, BYTES["float32"])
    separate_sum = width < exact and precision.accumulate != compute
    return {
        "weight_bytes": width,
        "gradient_bytes": width,
        "accumulate_bytes": BYTES[precision.accumulate] if separate_sum else 0,
        "shard_gradient_bytes": 0,
        "master_bytes": exact if width < exact else 0,
        "moment_bytes": moments * exact,
        "cast_bytes": 0,
        "reduce_bytes": BYTES[precision.reduce],
        "gather_bytes": width,
        "saved_bytes": (1 + moments) * exact,
    }
