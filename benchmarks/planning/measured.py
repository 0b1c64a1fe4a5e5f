"""Read measured layouts of the playbook's campaign as jobs of the planner."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from components.config.derived import FlopsPerToken
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import PositionsSpec
from components.config.schema.sections import Parallelism
from components.errors import RecipeError
from components.planner.job import TrainingJob

DEVICES_PER_NODE = 8
DEVICE_GIB, PEAK_TERAFLOPS = 80, 989.0  # H100-80GB, NVIDIA's data sheet: no row can have more
DEGREES = ("dp", "tp", "pp", "grad_accumulation", "micro_batch", "sequence_length")
SIZES = ("num_layers", "dim", "num_heads", "ffn_dim", "vocab_size")
OTHERS = ("nodes", "zero_stage", "newer_pipeline_code", "status", "tied_embeddings")
OUTCOMES = {"Success", "OOM"}  # what crashed or hung says nothing of memory or time
MEASURES = ("tokens_per_second_per_gpu", "reserved_gib")
COLUMNS = (*DEGREES, *SIZES, *OTHERS, *MEASURES, "kv_heads")


@dataclass(frozen=True, kw_only=True)
class MeasuredLayout:
    """One measured layout; ``seconds`` and ``reserved_bytes`` are 0 where it did not run."""

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
    """Read all rows of a table of measured layouts.

    Raises:
        RecipeError: a column is missing, or a row holds what cannot be.
    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            table = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
            if missing:
                problem = f"the columns {', '.join(missing)} are missing"
                raise RecipeError(str(file), problem, f"needed are {', '.join(COLUMNS)}")
            return [row for cells in table if (row := _read(file, table.line_num, cells))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(
            str(file), f"cannot be read: {error}", "give --measured a CSV file"
        ) from error


def _read(
    file: Path, line: int, cells: Mapping[str | None, str | None]
) -> MeasuredLayout | None:
    """Read one row, or nothing where its run neither ended nor ran out of memory."""
    where = f"{file}:{line}"
    filled = {key: value for key, value in cells.items() if key and value is not None}
    if len(filled) != len(cells):
        problem = f"{'more' if None in cells else 'fewer'} cells than the head has"
        raise RecipeError(where, problem, "mend the row")
    return _row(where, filled) if filled["status"] in OUTCOMES else None


def _row(where: str, cells: Mapping[str, str]) -> MeasuredLayout:
    counts = {name: _count(where, name, cells[name]) for name in (*DEGREES, *SIZES, "nodes")}
    ranks = counts["dp"] * counts["tp"] * counts["pp"]
    if ceil(ranks / DEVICES_PER_NODE) != counts["nodes"]:
        problem = f"dp x tp x pp = {ranks} ranks on {counts['nodes']} nodes"
        raise RecipeError(where, problem, f"a node has {DEVICES_PER_NODE} devices")
    if cells["zero_stage"] not in {"0", "1"}:
        problem = f"zero_stage {cells['zero_stage']!r} was not measured"
        raise RecipeError(where, problem, "use 0 or 1")
    ran = cells["status"] == "Success"
    job = _job(where, counts, cells)
    tokens, gib = (_rate(where, name, cells[name]) for name in MEASURES) if ran else (0.0, 0.0)
    _check_possible(where, job, tokens, gib)
    return MeasuredLayout(
        job=job,
        nodes=counts["nodes"],
        newer_pipeline_code=_flag(where, "newer_pipeline_code", cells),
        ran=ran,
        seconds=job.tokens_per_step / (tokens * ranks) if ran else 0.0,
        reserved_bytes=gib * 2**30,
    )


def _check_possible(where: str, job: TrainingJob, tokens: float, gib: float) -> None:
    """Hold what no device does; attention counts as if a causal mask saved half of it."""
    if gib > DEVICE_GIB:
        problem = f"reserved_gib {gib:g} on devices of {DEVICE_GIB} GiB"
        raise RecipeError(where, problem, "mend the row")
    flops = FlopsPerToken.of(job.shape, job.sequence_length).causal
    if (teraflops := flops * tokens / 1e12) > PEAK_TERAFLOPS:
        problem = (
            f"{MEASURES[0]} {tokens:g} are {teraflops:,.0f} TFLOP/s a device, more than its "
            f"peak of {PEAK_TERAFLOPS:g}"
        )
        raise RecipeError(where, problem, "mend the row")


def _flag(where: str, name: str, cells: Mapping[str, str]) -> bool:
    if cells[name] not in {"True", "False"}:
        raise RecipeError(where, f"{name} {cells[name]!r} is no flag", "use True or False")
    return cells[name] == "True"


def _count(where: str, name: str, text: str) -> int:
    value = _rate(where, name, text)
    if value != int(value):
        raise RecipeError(where, f"{name} {text!r} is no whole number", "mend the row")
    return int(value)


def _rate(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RecipeError(where, f"{name} {text!r} is no positive number", "mend the row")
    return value


def _job(where: str, counts: Mapping[str, int], cells: Mapping[str, str]) -> TrainingJob:
    """Take nanotron's precision: bfloat16; float32 accumulation, master copy and moments.

    Without other data ranks no gradient is kept beside the float32 sum.
    """
    shape = _shape(where, counts, cells)
    layers, head = cut_by_cost(shape, counts["pp"])
    layout = dense_layout(
        data=counts["dp"],
        tensor=counts["tp"],
        pipeline=counts["pp"],
        zero=int(cells["zero_stage"]),
        microbatch_sequences=counts["micro_batch"],
    )
    return mixed_precision_job(
        shape=shape,
        layout=layout,
        devices_per_node=DEVICES_PER_NODE,
        layers_by_stage=layers,
        head_stage=head,
        sequence_length=counts["sequence_length"],
        microbatches=counts["grad_accumulation"],
        compute="bfloat16",
        gradient_bytes=2 if counts["dp"] > 1 else 0,
        reduce_bytes=4,
        fused_attention=True,
    )


def mixed_precision_job(**values: Any) -> TrainingJob:
    """Describe a job with weights in 2 bytes, and sums, masters and moments in float32."""
    return TrainingJob(
        weight_bytes=2,
        accumulate_bytes=4,
        shard_gradient_bytes=0,
        master_bytes=4,
        moment_bytes=8,
        cast_bytes=0,
        gather_bytes=2,
        saved_bytes=14,
        dropout=False,
        attention_passes=1,
        **values,
    )


def dense_layout(*, data: int, **values: Any) -> Parallelism:
    """Return a layout without experts or context ranks that recomputes nothing.

    ``values`` are those of the other keys; nanotron's and Megatron-LM's defaults fill the rest.
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
        "expert_bound": None,
        "expert_aware": True,
        "expert_divisor": "ranks",
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
    # These programs gather weights without a buffer of their own, which no recipe can say.
    return layout.model_copy(update={"bucket_elements": 0})


def _shape(where: str, counts: Mapping[str, int], cells: Mapping[str, str]) -> DecoderSpec:
    """Llama's block; ``kv_heads`` is empty where a run did not log it: as many as heads."""
    heads = counts["num_heads"]
    groups = _count(where, "kv_heads", cells["kv_heads"]) if cells["kv_heads"] else heads
    for name, whole, parts in (
        ("dim", counts["dim"], heads),
        ("num_heads", heads, groups),
    ):
        if whole % parts:
            problem = f"{name} {whole} does not divide into {parts} equal parts"
            raise RecipeError(where, problem, "mend the row")
    return DecoderSpec(
        dim=counts["dim"],
        num_layers=counts["num_layers"],
        vocab_size=counts["vocab_size"],
        padded_vocab_size=counts["vocab_size"],
        tied_embeddings=_flag(where, "tied_embeddings", cells),
        attention=AttentionSpec(
            num_heads=heads,
            num_kv_heads=groups,
            head_dim=counts["dim"] // heads,
            bias=False,
        ),
        mlp=FeedForwardSpec(ffn_dim=counts["ffn_dim"], gated=True),
        norm=NormSpec(eps=1e-5, center=False, weight=True, bias=False),
        positions=PositionsSpec(base=10_000.0),
        initialization=NormalSpec(std=0.02, residual="scaled", padding_row=None),
    )


def cut_by_cost(shape: DecoderSpec, stages: int) -> tuple[tuple[int, ...], int]:
    """Deal layers and head to stages as nanotron does (``models/base.py:build_model``).

    A stage takes blocks until the products so far exceed its share; return the layers of each
    stage and where the head went. Stages behind the head stay empty.
    """
    layer = 4 * shape.dim**2 + 3 * shape.dim * shape.mlp.ffn_dim
    head = shape.vocab_size * shape.dim
    share = (shape.num_layers * layer + head) / stages
    counts, stage = [0] * stages, 0
    for cost in accumulate([layer] * shape.num_layers):
        counts[stage] += 1
        stage += cost > share * (stage + 1)
    return tuple(counts), stage
