"""Published step times of other programs on three machines, as jobs of the planner.

Rows are in ``benchmarks/data/public_steps.csv``, the switches of their engines in
``engines.yaml``. A row without seconds states tokens per second
or TFLOP/s as Megatron-LM counts them: 6 N + 6 L h s (`components.planner.rates`, ``causal``).
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from benchmarks.planning.measured import decoder_shape, dense_layout, mixed_precision_job
from benchmarks.planning.planner_accuracy import DATA
from components.config.model_spec.decoder import DecoderSpec
from components.config.schema.cluster import Hardware
from components.config.stages import stage_layers
from components.planner.accuracy import classify_job
from components.planner.job import ExpertPath, TrainingJob
from components.planner.rates import flops_by_convention
from components.planner.software import SoftwareSpeed
from components.planner.time import plan_time

TABLE = DATA / "public_steps.csv"
RATE = re.compile(r"([\d.]+) (TFLOP/s|tokens/s) a GPU")
EVERY = re.compile(r"every (\d+)th layer")


class EngineSwitches(BaseModel, frozen=True):
    """What an engine does: keys of the layout, the path of experts, launches one by one."""

    layout: Mapping[str, Any] = {}
    expert_path: ExpertPath = "grouped"
    launches: bool = True


@cache
def read_engine(name: str) -> EngineSwitches:
    """Read the switches of an engine."""
    engines = yaml.safe_load((DATA / "engines.yaml").read_text("utf-8"))
    return EngineSwitches.model_validate(engines[name])


@dataclass(frozen=True, kw_only=True)
class PublicStep:
    """One published layout; ``seconds`` is 0 if the run went out of memory."""

    source: str
    machine: str
    engine: str
    job: TrainingJob
    seconds: float

    def plan_seconds(self, hardware: Hardware, speed: SoftwareSpeed) -> float:
        """Predict the seconds of the step with the switches of its engine."""
        switches = read_engine(self.engine)
        job = self.job.with_layout(**switches.layout)
        job = replace(job, expert_path=switches.expert_path)
        if not switches.launches:
            speed = speed.model_copy(update={"launch_seconds": 0.0})
        return plan_time(job, hardware, speed).total_seconds

    @property
    def ran(self) -> bool:
        return self.seconds > 0

    @property
    def error_class(self) -> str:
        """Machine and kind of feed-forward part, the classes of the accuracy table."""
        return f"{self.machine}, {classify_job(self.job)[0]}"


def read_public_steps() -> list[PublicStep]:
    """Read all rows of the table."""
    facts = yaml.safe_load(TABLE.with_suffix(".yaml").read_text("utf-8"))
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return [_read_step(cells, facts) for cells in csv.DictReader(lines)]


def _read_step(cells: Mapping[str, str], facts: Mapping[str, Any]) -> PublicStep:
    job = _job(cells, facts)
    seconds = float(cells["step_seconds"] or 0)
    rate = RATE.search(cells["note"])
    if not seconds and rate is not None:
        figure = float(rate[1]) * job.layout.num_ranks
        if rate[2] == "TFLOP/s":
            shape, length = job.shape, job.sequence_length
            flops = flops_by_convention(shape, length, pipeline=job.layout.pipeline)["causal"]
            figure *= 1e12 / flops
        seconds = job.tokens_per_step / figure
    return PublicStep(
        source=cells["source"],
        machine=cells["machine"],
        engine=cells["engine"],
        job=job,
        seconds=seconds,
    )


def _job(cells: Mapping[str, str], facts: Mapping[str, Any]) -> TrainingJob:
    """Return a job of Megatron: ZeRO-1 in all rows, sums in float32."""
    tensor, pipeline, expert = (int(cells[key]) for key in ("tensor", "pipeline", "expert"))
    shape = _shape(cells["model"], facts["vocabularies"].get(cells["vocab"]))
    data = int(cells["devices"]) // (tensor * pipeline)
    every = EVERY.search(cells["recompute"])
    # torchtitan's rows state the whole batch. Its default is one sequence in a microbatch.
    size = int(cells["microbatch"]) if cells["microbatch"].isdigit() else 1
    batch = int(cells["global_batch"] or data * size)
    return mixed_precision_job(
        shape=shape,
        layout=dense_layout(
            data=data // expert,
            data_shard=data,
            tensor=tensor,
            pipeline=pipeline,
            expert=expert,
            zero=1,
            sequence_parallel=tensor > 1,
            microbatch_sequences=size,
            recompute="none" if cells["recompute"] == "none" else "full",
            recompute_every=int(every[1]) if every else 1,
        ),
        devices_per_node=facts["devices_per_node"][cells["machine"]],
        layers_by_stage=tuple(map(len, stage_layers(shape.num_layers, pipeline, "layers"))),
        head_stage=pipeline - 1,
        sequence_length=int(cells["sequence"]),
        microbatches=batch // (data * size),
        fused_attention="ALiBi" not in cells["model"],
    )


@cache
def _shape(name: str, vocabulary: int | None) -> DecoderSpec:
    facts = yaml.safe_load(TABLE.with_suffix(".yaml").read_text("utf-8"))["models"][name]
    return decoder_shape(
        dim=facts["dim"],
        layers=facts["layers"],
        heads=facts["heads"],
        kv_heads=facts["kv_heads"],
        head_dim=facts.get("head_dim"),
        ffn_dim=facts["ffn"],
        vocabulary=vocabulary or facts["vocabulary"],
        tied=facts.get("tied", False),
        gated=facts.get("gated", True),
        num_experts=facts.get("experts"),
        top_k=facts.get("top_k"),
    )
