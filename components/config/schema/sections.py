"""The fixed sections of a recipe: types and ranges, without defaults (those live in ``conf/``).

Sections that name classes are read by :mod:`components.config.part_nodes`.
"""

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

Part = Literal["attention", "mlp", "norms"]
Recompute = (
    Literal["none", "selective", "full"] | Annotated[tuple[Part, ...], Field(strict=False)]
)
Axis = Literal["data", "tensor", "pipeline", "expert", "context"]
AXES: tuple[Axis, ...] = get_args(Axis)
# Ranks that differ on these axes alone hold the same dense weights.
DENSE_AXES: tuple[Axis, ...] = ("data", "expert", "context")
Stem = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
Works = Annotated[tuple[Stem, ...], Field(strict=False)]


class RampUp(Section):
    """A batch that grows from ``start_tokens`` in equal steps, spread ``over_tokens``."""

    start_tokens: Count
    increment_tokens: Count
    over_tokens: Count


class Budget(Section):
    """How many tokens, in what helpings."""

    total_tokens: Count
    global_batch_tokens: Count
    ramp_up: OrNone[RampUp]
    sequence_length: Count
    seed: Annotated[int, Field(ge=0)]


class LossScaleSection(Section):
    """Dynamic loss scaling for float16, in DeepSpeed's terms."""

    initial: Positive
    window: Count
    hysteresis: Count
    minimum: Positive


class Precision(Section):
    """Dtypes of the step; ``auto`` is bfloat16 where the device has it, else float32.

    ``weights`` are what the model computes with, by ``auto`` in the dtype of its products. The
    optimizer updates them, or where they are rounded a ``master`` copy in its shards, by
    ``auto`` in float32 or finer; its moments have the master's dtype. Gradients of microbatches
    add up in ``accumulate``, those of ranks in ``reduce``.
    ``float64`` is for proofs: two layouts that agree in it compute the same. ``float8`` is
    bfloat16 but for the linear maps of the layers, see :mod:`components.model.float8`.
    """

    compute: Literal["auto", "bfloat16", "float8", "float16", "float32", "float64"]
    # How the same numbers are held: rounded weights are those that autocast would round.
    weights: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "float64"], KeyGroup.LAYOUT
    ]
    master: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "float64"], KeyGroup.LAYOUT
    ]
    accumulate: Literal["bfloat16", "float16", "float32", "float64"]
    reduce: Literal["bfloat16", "float16", "float32", "float64"]
    loss_scale: OrNone[LossScaleSection]


# DeepSpeed's default ``reduce_bucket_size`` (its zero/config.py), in numbers.
DEEPSPEED_BUCKET = 500_000_000


class DeepSpeedZero(Section):
    """Collectives of DeepSpeed's ZeRO, by the names of its ``zero_optimization`` JSON.

    Bucket sizes are numbers of elements. Without ``reduce_scatter`` every rank gets the sums of
    all gradients, by an all-reduce, and keeps its share.
    """

    keys_group = KeyGroup.LAYOUT

    overlap_comm: bool
    reduce_scatter: bool
    reduce_bucket_size: Count
    allgather_bucket_size: Annotated[Count, Field(multiple_of=2)]  # asserted by DeepSpeed


class Parallelism(Section):
    """The degrees; their product is the number of ranks.

    ``data_shard`` ranks share one sharded copy of what ``zero`` shards; data x expert ranks are
    so many copies of it. ``rank_order`` says which axis changes slowest from rank to rank, and
    which fastest. Which rank has which stages says :mod:`components.config.stages`.
    Gradients leave in buckets of ``bucket_elements`` numbers, or one larger weight; with
    ``overlap`` under the backward pass, and updated weights come under the next forward pass.
    Tokens go to experts on other ranks in ``expert_overlap`` parts: while one is computed,
    others are under way. No message has more than ``expert_bound`` times an even share of the
    pairs of token and expert; null is exact sizes, read on the host. ``deepspeed`` is read by
    that engine alone; null leaves its buckets to the engine. All ranks collect Python's
    garbage every ``gc_every_steps`` steps, or each by Python's own rule (``never``).
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
    expert_bound: Annotated[float, Field(ge=1)] | None
    expert_aware: bool
    expert_divisor: Literal["ranks", "copies"]
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
    def degrees(self) -> dict[Axis, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def ranks(self) -> int:
        return prod(self.degrees.values())

    @property
    def replicas(self) -> int:
        """Ranks that read different samples; each has all dense parameters of its stage."""
        return self.data * self.expert

    @property
    def used_axes(self) -> dict[Axis, int]:
        """The axes with more than one rank, and their degrees."""
        return {axis: degree for axis, degree in self.degrees.items() if degree > 1}

    @property
    def product(self) -> str:
        """Write the degrees as the product that gives the ranks, data parallel axes first."""
        axes = sorted(AXES, key=lambda axis: axis not in DENSE_AXES)
        return " x ".join(f"{axis} {self.degrees[axis]}" for axis in axes)


class LocalCheckpoints(Section):
    """Each rank's state every ``every_steps`` steps, in its node's ``folder`` and another's."""

    folder: Annotated[Place, Field(pattern="^/")]
    every_steps: Count


class Checkpoint(Section):
    """How often a checkpoint is written, on the clock of tokens, and which are kept.

    Of checkpoints stay the last ``keep``, the first at or after every multiple of
    ``keep_every_tokens``, and the ``keep_best`` of lowest held-out loss. Weights alone are
    written every ``weights_every_tokens`` and stay. What stays for good is copied into the
    folder ``copy_to``. All ranks together write at most ``files``; a file system that is away
    or full is waited for, ``retry_seconds``. ``local`` ones are for ranks that start again.
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
    """How often the held-out loss is taken, and on how many windows of each source."""

    keys_group = KeyGroup.RECORD

    every_tokens: Count
    max_windows_per_source: Count


class Cluster(Section):
    """The machine: how many nodes of how many devices, behind which scheduler.

    The planner alone reads ``hardware``, ``accounting``, ``storage``, ``failures`` and
    ``waiting_hours`` (what the user expects each job of a chain to wait), job scripts alone
    ``site``; plans and runs multiply their energy by ``electricity``. ``hours`` are what one
    job asks for, ``jobs`` how many the chain has at most; ``smoke`` is one short job on two
    nodes, to see that everything starts. A job asks for ``spare_nodes`` more than it has ranks
    for: they take the place of nodes that fail, or that ``preflight`` finds bad before the
    ranks start; ``auto`` is ``spare_fraction`` of its nodes,
    rounded down, and not more than a queue takes. Ranks import Python's packages and this code
    from where they lie, or from a copy that each node makes before (``imports``).
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
        """Name the variable by which the site shows each rank its own device, if it does."""
        mask = profile.DEVICE_MASKS.get(self.device, "")
        shown = not isinstance(self.site, str) and mask in self.site.rank_environment
        return mask if shown else None


class PublishedFigure(Section):
    """A figure that a source states."""

    value: int | float | str
    unit: str
    source: str


class AssumedValue(Section):
    """A value that a run needs and no source gives, set here once, with the reason."""

    value: FrozenValue
    reason: str


class Carrier(Section):
    """An embedded corpus that carries a share of a miniature's tokens."""

    embedded: str
    share: Fraction


class Shrink(Section):
    """The sizes that a miniature is brought down to."""

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
    carriers: FrozenMapping[Carrier]


class ScaleSection(Section):
    """Which size of the recipe this is, and how a smaller one is made."""

    name: Stem
    shrink: OrNone[Shrink]
