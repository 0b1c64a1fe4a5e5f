"""Schema of a recipe's fixed sections; `components.config.part_nodes` reads the others."""

from math import prod
from typing import Annotated, Literal, get_args

from pydantic import Field

from components.config.schema import cluster as profile
from components.config.schema.types import (
    Balance,
    Count,
    Fraction,
    FrozenMapping,
    FrozenValue,
    KeyGroup,
    OrNone,
    Place,
    Section,
)
from components.ranges import Positive, Ranks

RecomputedPart = Literal["attention", "mlp", "norms"]
Recompute = (
    Literal["none", "selective", "full"]
    | Annotated[tuple[RecomputedPart, ...], Field(strict=False)]
)
Axis = Literal["data", "tensor", "pipeline", "expert", "context"]
AXES: tuple[Axis, ...] = get_args(Axis)
# Ranks that differ only on these axes hold the same dense weights.
DENSE_AXES: tuple[Axis, ...] = ("data", "expert", "context")
Stem = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
Works = Annotated[tuple[Stem, ...], Field(strict=False)]


class RampUp(Section):
    """Batch ramp-up from ``start_tokens`` in equal increments, over ``over_tokens`` tokens."""

    start_tokens: Count
    increment_tokens: Count
    over_tokens: Count


class Budget(Section):
    """Token budget, batch size, sequence length and seed."""

    total_tokens: Count
    global_batch_tokens: Count
    ramp_up: OrNone[RampUp]
    sequence_length: Count
    seed: Annotated[int, Field(ge=0)]


class LossScaleSection(Section):
    """Dynamic loss scaling for float16, with DeepSpeed's parameters."""

    initial: Positive
    window: Count
    hysteresis: Count
    minimum: Positive


Dtype = Literal["bfloat16", "float16", "float32", "float64"]


class Precision(Section):
    """Dtypes of a step; ``auto`` is bfloat16 if the device supports it, else float32.

    The model computes with ``weights``; ``auto`` is the dtype of its products. If these are
    rounded, the optimizer updates a ``master`` copy in its shards (``auto``: float32 or finer),
    else the weights themselves. Its moments have the master's dtype. Gradients are added over
    microbatches in ``accumulate`` and over ranks in ``reduce``. ``float64`` is for tests: two
    layouts that agree in float64 compute the same. ``float8`` applies to the linear maps of the
    layers (:mod:`components.model.float8`); all else is bfloat16.
    """

    compute: Literal["auto", "bfloat16", "float8", "float16", "float32", "float64"]
    # Storage of the same numbers: autocast would round the same weights.
    weights: Annotated[Literal["auto", Dtype], KeyGroup.LAYOUT]
    master: Annotated[Literal["auto", Dtype], KeyGroup.LAYOUT]
    accumulate: Dtype
    reduce: Dtype
    loss_scale: OrNone[LossScaleSection]


# DeepSpeed's default ``reduce_bucket_size`` (its zero/config.py), in elements.
DEEPSPEED_BUCKET = 500_000_000


class DeepSpeedZero(Section):
    """Collectives of DeepSpeed's ZeRO, named as in its ``zero_optimization`` JSON.

    Bucket sizes are numbers of elements. Without ``reduce_scatter``, an all-reduce gives every
    rank the sums of all gradients.
    """

    keys_group = KeyGroup.LAYOUT

    overlap_comm: bool
    reduce_scatter: bool
    reduce_bucket_size: Count
    allgather_bucket_size: Annotated[Count, Field(multiple_of=2)]  # asserted by DeepSpeed


class Parallelism(Section):
    """Parallelism degrees; their product is the number of ranks.

    ``data_shard`` ranks share one sharded copy of the state that ``zero`` shards; data x expert
    / data_shard copies exist. ``rank_order`` lists the axes, the slowest first. Gradients are
    reduced in buckets of ``bucket_elements`` elements, or one larger weight. With ``overlap``
    the reduction overlaps the backward pass, and the all-gather of updated weights the next
    forward pass. Tokens are sent to experts on other ranks in ``expert_overlap`` parts: one
    part is computed while others are sent. A message has at most ``expert_capacity_factor``
    times an even share of the (token, expert) pairs; null uses exact sizes, read on the host.
    Only the DeepSpeed engine reads ``deepspeed``; null leaves its bucket sizes to the engine.
    All ranks run Python's garbage collection every ``gc_every_steps`` steps; ``never`` leaves
    it to each Python process.
    """

    keys_group = KeyGroup.LAYOUT

    data: Ranks
    data_shard: Ranks
    tensor: Ranks
    pipeline: Ranks
    expert: Ranks
    context: Ranks
    engine: Literal["mesh", "deepspeed"]
    deepspeed: Annotated[DeepSpeedZero | None, Field(exclude_if=lambda zero: zero is None)] = (
        None
    )
    zero: Literal[0, 1, 2, 3]
    offload_optimizer: bool
    overlap: bool
    bucket_elements: Count
    expert_dispatch: Literal["all_gather", "all_to_all"]
    expert_overlap: Count
    expert_capacity_factor: Annotated[float, Field(ge=1)] | None
    expert_aware: bool
    expert_grad_average: Literal["ranks", "replicas"]
    sequence_parallel: bool
    microbatch_sequences: Count
    recompute: Recompute
    recompute_every: Count
    compile: Literal["none", "layers"]
    gc_every_steps: Annotated[Count | Literal["never"], KeyGroup.MACHINE]
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"]
    stages_per_rank: Ranks
    stage_balance: Balance
    rank_order: Annotated[tuple[Axis, ...], Field(strict=False)]

    @property
    def axis_degrees(self) -> dict[Axis, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def num_ranks(self) -> int:
        return prod(self.axis_degrees.values())

    @property
    def num_replicas(self) -> int:
        """Ranks that read different samples; each has all dense parameters of its stage."""
        return self.data * self.expert

    @property
    def used_axes(self) -> dict[Axis, int]:
        """The axes with more than one rank, and their degrees."""
        return {axis: degree for axis, degree in self.axis_degrees.items() if degree > 1}

    @property
    def degrees_text(self) -> str:
        """Degrees as a text ``data N x ...``, data parallel axes first."""
        axes = sorted(AXES, key=lambda axis: axis not in DENSE_AXES)
        return " x ".join(f"{axis} {self.axis_degrees[axis]}" for axis in axes)


class LocalCheckpoints(Section):
    """Local checkpoints every ``every_steps`` steps, in ``folder`` of two nodes."""

    folder: Annotated[Place, Field(pattern="^/")]
    every_steps: Count


class Checkpoint(Section):
    """Checkpoint interval in tokens, and retention.

    A run keeps the last ``keep`` checkpoints, the first at or after every multiple of
    ``keep_every_tokens``, and the ``keep_best`` with the lowest held-out loss. Weights alone
    are written every ``weights_every_tokens`` and kept. Permanent checkpoints are copied into
    the folder ``copy_to``. All ranks together write at most ``files`` files. If the file system
    is unavailable or full, ranks retry for ``retry_seconds``. ``local`` checkpoints are for
    ranks that restart.
    """

    every_tokens: Count
    keep: Count
    keep_every_tokens: Count | Literal["none"]
    keep_best: Annotated[int, Field(ge=0)]
    weights_every_tokens: Count | Literal["none"]
    copy_to: Place
    asynchronous: bool
    files: Count
    retry_seconds: Annotated[float, Field(ge=0)]
    local: OrNone[LocalCheckpoints]


class EvaluationSection(Section):
    """Interval of the held-out loss, and its number of windows per source."""

    keys_group = KeyGroup.RECORD

    every_tokens: Count
    max_windows_per_source: Count


class Cluster(Section):
    """Cluster: nodes, devices per node, scheduler, site and jobs.

    Only the planner reads ``hardware``, ``accounting``, ``storage``, ``failures`` and
    ``waiting_hours`` (the expected queue time of each job of a chain). Only job scripts read
    ``site``. Plans and runs multiply their energy by ``electricity``. ``hours`` is the
    requested time of one job, ``jobs`` the maximum length of the chain. ``smoke`` is one short
    job on two nodes that tests the start. A job requests ``spare_nodes`` additional nodes,
    which replace nodes that fail or that ``preflight`` rejects before the ranks start; ``auto``
    is ``spare_fraction`` of its nodes, rounded down, within the limit of the largest queue.
    ``imports`` selects where ranks import code from: the shared file system, or a copy that
    each node makes first.
    """

    name: str
    scheduler: Literal["none", "slurm", "pbs"]
    device: Literal["auto", "cpu", "cuda", "rocm", "xpu"]
    devices_per_node: Ranks
    nodes: Ranks
    ranks: Ranks
    hardware: profile.Machine
    storage: profile.Storage
    failures: profile.Failures
    electricity: profile.Electricity
    accounting: OrNone[profile.Accounting]
    queues: Annotated[tuple[profile.QueueSection, ...], Field(strict=False)]
    waiting_hours: Annotated[float, Field(ge=0)]
    hours: Literal["auto"] | profile.Rate
    jobs: Literal["auto"] | Count
    smoke: bool
    spare_nodes: Annotated[int, Field(ge=0)]
    spare_fraction: Annotated[float, Field(ge=0, lt=1)]
    preflight: OrNone[profile.Preflight]
    imports: Literal["shared", "node_local"]
    site: OrNone[profile.Site]

    @property
    def rank_mask(self) -> str | None:
        """Variable with which the site shows each rank only its device; None if unset."""
        mask = profile.DEVICE_MASKS.get(self.device, "")
        shown = not isinstance(self.site, str) and mask in self.site.rank_environment
        return mask if shown else None


class PublishedFigure(Section):
    """Figure from a published source."""

    value: int | float | str
    unit: str
    source: str


class AssumedValue(Section):
    """Assumed value that no source states, and the reason."""

    value: FrozenValue
    reason: str


class FillerText(Section):
    """Embedded corpus with a share of a miniature's tokens."""

    embedded: str
    share: Fraction


class Shrink(Section):
    """Maximum sizes of a miniature."""

    dim: Count
    num_layers: Count
    head_dim: Count
    num_experts: Count
    padded_vocab_size: Count
    padding_rows: Count
    sequence_length: Count
    samples_per_step: Count
    microbatch_sequences: Count
    total_tokens: Count
    checkpoints: Count
    evaluations: Count
    lr_width_exponent: Annotated[float, Field(ge=0, le=1)]
    held_out_fraction: Fraction
    tokenizer_sample_bytes: Count | Literal["all"]
    filler: FrozenMapping[FillerText]


class ScaleSection(Section):
    """Scale of the recipe, and the sizes to shrink it to."""

    name: Stem
    shrink: OrNone[Shrink]
