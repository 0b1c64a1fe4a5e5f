"""The training job: what the planner reads of a recipe, and the layers of each rank."""

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
    """Layers that are alike: a job with such layers only, their number, how many recompute."""

    job: "TrainingJob"
    layers: int
    recomputed: int


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training step: the model, the layout, the batch and the precision.

    ``layers_by_stage`` are the layers of each pipeline stage. ``head_stage`` has the head and
    ``mtp_depth`` more layers, which predict further tokens in training.
    ``splits_backward``: the schedule computes weight gradients in passes of their own.

    Bytes are per number: weights, the gradients of a microbatch that stay, the buffer in which
    they add up (each 0 if there is none), the mean that an optimizer's shard gets (0 if it
    reads the sums), the master copy and all moments of the optimizer. ``cast_bytes`` are kept
    of each weight for each microbatch in flight. ``reduce_bytes`` are sent of each gradient,
    ``gather_bytes`` of each weight; the gradient that a weight gets has as many. A checkpoint
    has ``saved_bytes``.

    ``uses_sdpa``: attention is torch's scaled dot product, which gets values as wide as keys,
    and one of a context rank's two chunks at a time. ``even_load``: routing is forced to be
    uniform. ``muon``: hidden matrices have one moment. Layers with a window may have another
    kernel: ``attention_passes`` is then the mean, and one kernel that is not fused counts for
    all.
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
        sequences = self.layout.microbatch_sequences * self.microbatches * self.layout.replicas
        return sequences * self.sequence_length

    @property
    def microbatch_tokens(self) -> float:
        """Tokens of one microbatch on one context rank."""
        sequences = self.layout.microbatch_sequences
        return sequences * self.sequence_length / self.layout.context

    @property
    def value_width(self) -> int:
        """Width of the values of a head in the attention kernel."""
        attention = self.shape.attention
        return attention.head_dim if self.uses_sdpa else attention.values

    @property
    def expert_padding(self) -> float:
        """Rows that local experts get for each pair of token and expert, at even load."""
        return min(self.layout.expert_bound or 1.0, float(self.layout.expert))

    @property
    def overlaps(self) -> bool:
        """Whether collectives of data ranks, in buckets, run during passes."""
        layout = self.layout
        if layout.engine == "deepspeed":
            return layout.deepspeed is not None and layout.deepspeed.overlap_comm
        return layout.overlap

    @property
    def bucket_elements(self) -> int:
        """Numbers that one collective of gradients carries."""
        layout = self.layout
        if layout.engine == "deepspeed":
            return layout.deepspeed.reduce_bucket_size if layout.deepspeed else DEEPSPEED_BUCKET
        return layout.bucket_elements

    @property
    def groups(self) -> RankGroups:
        return RankGroups(self.layout, self.devices_per_node)

    @cached_property
    def placement(self) -> StagePlacement:
        return StagePlacement.of(self.layout)

    @cached_property
    def dense(self) -> Self:
        """The same job with only leading layers, which have no experts."""
        job = self.with_layout(data=self.layout.replicas, expert=1)
        return replace(job, shape=self.shape.dense)

    def with_layout(self, **changes: object) -> Self:
        """Return the job with other values of some keys of the layout, unchecked."""
        return replace(self, layout=self.layout.model_copy(update=changes))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """List the stages of a pipeline rank."""
        return self.placement.stages_of(rank)

    def has_head(self, rank: int) -> bool:
        return self.head_stage in self.stages_of(rank)

    @property
    def equal_ranks(self) -> list[list[int]]:
        """Group the pipeline ranks that compute and hold the same; the first one is alone."""
        groups = defaultdict[tuple[int, int, bool, bool], list[int]](list)
        for rank in range(self.layout.pipeline):
            layers = self.layers_of(rank), self.recomputed_of(rank)
            groups[*layers, rank == 0, self.has_head(rank)].append(rank)
        return list(groups.values())

    def layers_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank."""
        return sum(map(len, self._layer_ranges(self.stages_of(rank))))

    def recomputed_of(self, rank: int) -> int:
        """Count the layers of a pipeline rank that are recomputed, if any layer is."""
        return sum(map(self._recomputed, self._layer_ranges(self.stages_of(rank))))

    def layer_kinds(self, stages: Iterable[int]) -> tuple[LayerKind, ...]:
        """Count the layers of these stages: all but the leading ones, then these, if any."""
        ranges, leading = self._layer_ranges(stages), self.shape.leading_layers
        kinds = [
            (self, [range(max(one.start, leading), max(one.stop, leading)) for one in ranges])
        ]
        if leading:
            first = [range(min(one.start, leading), min(one.stop, leading)) for one in ranges]
            kinds.append((self.dense, first))
        return tuple(
            LayerKind(job, sum(map(len, parts)), sum(map(self._recomputed, parts)))
            for job, parts in kinds
        )

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
        """Count the layers whose number ``recompute_every`` divides."""
        every = self.layout.recompute_every
        return -(-layers.stop // every) - -(-layers.start // every)


def job_from_recipe(recipe: Recipe) -> TrainingJob:
    """Read a resolved recipe."""
    parallelism = recipe.parallelism
    layers = recipe.derived.layers_by_stage
    kernels = attention_backends(recipe).values()
    return TrainingJob(
        shape=recipe.shape,
        layout=parallelism,
        devices_per_node=recipe.cluster.devices_per_node,
        layers_by_stage=layers,
        head_stage=len(layers) - 1,
        mtp_depth=recipe.shape.mtp_depth,
        splits_backward=splits_backward(parallelism),
        sequence_length=recipe.budget.sequence_length,
        microbatches=recipe.derived.microbatches_per_step,
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
