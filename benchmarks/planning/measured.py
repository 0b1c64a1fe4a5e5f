"""Measured layouts of the playbook's campaign, as jobs of the planner."""

import csv
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator

from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import PositionsSpec
from components.config.schema.sections import Parallelism
from components.planner.job import TrainingJob

DEVICES_PER_NODE = 8
OUTCOMES = {"Success", "OOM"}  # crashes and hangs contain no measurement


class TableRow(BaseModel, frozen=True):
    """The cells of a row that are read; a run out of memory has no measurements."""

    nodes: int
    dp: int
    tp: int
    pp: int
    grad_accumulation: int
    micro_batch: int
    sequence_length: int
    zero_stage: int
    newer_pipeline_code: bool
    status: str
    num_layers: int
    dim: int
    num_heads: int
    kv_heads: int | None  # not logged by every run; then the number of heads
    ffn_dim: int
    vocab_size: int
    tied_embeddings: bool
    tokens_per_second_per_gpu: float | None
    reserved_gib: float | None

    @field_validator("kv_heads", "tokens_per_second_per_gpu", "reserved_gib", mode="before")
    @classmethod
    def read_empty(cls, cell: str) -> str | None:
        """Read an empty cell as no value."""
        return cell or None

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp


@dataclass(frozen=True, kw_only=True)
class MeasuredLayout:
    """One measured layout; ``seconds`` and ``reserved_bytes`` are 0 if it did not run."""

    job: TrainingJob
    nodes: int
    newer_pipeline_code: bool
    ran: bool
    seconds: float
    reserved_bytes: float

    @property
    def model(self) -> tuple[int, int]:
        return self.job.shape.num_layers, self.job.shape.dim


def read_rows(file: Path) -> list[MeasuredLayout]:
    """Read the measured layouts of a table: runs that ended or ran out of memory."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [TableRow.model_validate(cells) for cells in csv.DictReader(lines)]
    return [_read_layout(row) for row in rows if row.status in OUTCOMES]


def _read_layout(row: TableRow) -> MeasuredLayout:
    job, ran = _job(row), row.status == "Success"
    tokens, gib = row.tokens_per_second_per_gpu or 0.0, row.reserved_gib or 0.0
    return MeasuredLayout(
        job=job,
        nodes=row.nodes,
        newer_pipeline_code=row.newer_pipeline_code,
        ran=ran,
        seconds=job.tokens_per_step / (tokens * row.ranks) if ran else 0.0,
        reserved_bytes=gib * 2**30 if ran else 0.0,
    )


def _job(row: TableRow) -> TrainingJob:
    """Return a job in nanotron's precision: bfloat16 with float32 sums, masters and moments.

    With one data rank there is no gradient besides the float32 sum.
    """
    shape = decoder_shape(
        dim=row.dim,
        layers=row.num_layers,
        heads=row.num_heads,
        kv_heads=row.kv_heads,
        ffn_dim=row.ffn_dim,
        vocabulary=row.vocab_size,
        tied=row.tied_embeddings,
    )
    layers, head = assign_by_cost(shape, row.pp)
    return mixed_precision_job(
        shape=shape,
        layout=dense_layout(
            data=row.dp,
            tensor=row.tp,
            pipeline=row.pp,
            zero=row.zero_stage,
            microbatch_sequences=row.micro_batch,
        ),
        devices_per_node=DEVICES_PER_NODE,
        layers_by_stage=layers,
        head_stage=head,
        sequence_length=row.sequence_length,
        microbatches=row.grad_accumulation,
        gradient_bytes=2 if row.dp > 1 else 0,
        reduce_bytes=4,
    )


def decoder_shape(
    *,
    dim: int,
    layers: int,
    heads: int,
    ffn_dim: int,
    vocabulary: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    tied: bool = False,
    gated: bool = True,
    **experts: Any,
) -> DecoderSpec:
    """Return a decoder like Llama, or like GPT with biases and centered norms (not gated)."""
    return DecoderSpec(
        dim=dim,
        num_layers=layers,
        vocab_size=vocabulary,
        padded_vocab_size=vocabulary,
        tied_embeddings=tied,
        attention=AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads or heads,
            head_dim=head_dim or dim // heads,
            bias=not gated,
        ),
        mlp=FeedForwardSpec(ffn_dim=ffn_dim, gated=gated, bias=not gated, **experts),
        norm=NormSpec(eps=1e-5, center=not gated, weight=True, bias=not gated),
        positions=PositionsSpec(base=10_000.0 if gated else None),
        initialization=NormalSpec(std=0.02, residual="scaled", padding_row=None),
    )


def mixed_precision_job(**values: Any) -> TrainingJob:
    """Return a job with weights of 2 bytes and float32 sums, masters and moments."""
    settings: dict[str, Any] = {
        "compute": "bfloat16",
        "weight_bytes": 2,
        "gradient_bytes": 2,
        "accumulate_bytes": 4,
        "shard_gradient_bytes": 0,
        "master_bytes": 4,
        "moment_bytes": 8,
        "cast_bytes": 0,
        "reduce_bytes": 2,
        "gather_bytes": 2,
        "saved_bytes": 14,
        "dropout": False,
        "fused_attention": True,
        "attention_passes": 1,
    }
    return TrainingJob(**(settings | values))


def dense_layout(*, data: int, **values: Any) -> Parallelism:
    """Return a layout without experts, context ranks and recomputation.

    ``values`` sets other keys; the remaining keys have nanotron's and Megatron-LM's defaults.
    """
    layout = Parallelism.model_validate({
        "data": data,
        "data_shard": data,
        "tensor": 1,
        "pipeline": 1,
        "expert": 1,
        "context": 1,
        "engine": "mesh",
        "offload_optimizer": False,
        "overlap": False,
        "bucket_elements": 1,
        "expert_dispatch": "all_gather",
        "expert_overlap": 1,
        "expert_capacity_factor": None,
        "expert_aware": True,
        "expert_grad_average": "ranks",
        "sequence_parallel": True,
        "microbatch_sequences": 1,
        "recompute": "none",
        "recompute_every": 1,
        "compile": "none",
        "gc_every_steps": "never",
        "schedule": "1f1b",
        "stages_per_rank": 1,
        "stage_balance": "layers",
        "rank_order": ("pipeline", "data", "expert", "context", "tensor"),
        **values,
    })
    # These programs gather weights without a buffer, which a recipe cannot express.
    return layout.model_copy(update={"bucket_elements": 0})


def assign_by_cost(shape: DecoderSpec, stages: int) -> tuple[tuple[int, ...], int]:
    """Assign layers and head to stages as nanotron does (``models/base.py:build_model``).

    A stage takes blocks until the sum of products exceeds its share. Return the layers of each
    stage and the stage of the head. Stages after the head are empty.
    """
    layer = 4 * shape.dim**2 + 3 * shape.dim * shape.mlp.ffn_dim
    head = shape.vocab_size * shape.dim
    share = (shape.num_layers * layer + head) / stages
    counts, stage = [0] * stages, 0
    for cost in accumulate([layer] * shape.num_layers):
        counts[stage] += 1
        stage += cost > share * (stage + 1)
    return tuple(counts), stage
