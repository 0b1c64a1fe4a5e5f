"""Compare the planner with published steps that were not used for fitting.

python -m benchmarks.planning.planner_blind
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, Literal

import yaml

from benchmarks.entry import run_script
from benchmarks.planning.measured import decoder_shape, dense_layout, mixed_precision_job
from benchmarks.results_store import ROOT
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.schema.cluster import Hardware
from components.config.stages import stage_layers
from components.config.validation import read_section
from components.planner.job import TrainingJob
from components.planner.plan import plan_recipe
from components.planner.software import OURS, read_software
from components.planner.time import plan_time

DATA = ROOT / "benchmarks" / "data"
SEQUENCE_LENGTH = 2_048
# A row whose two figures of speed differ by more than this has another shape than it states.
MOST_INCONSISTENT = 0.05
ENDS_SINCE = "2022-02-28"  # since then stages count embedding and head


def main() -> int:
    """Print the figures as a JSON object."""
    source = yaml.safe_load((DATA / "published_steps.yaml").read_text("utf-8"))
    rows = [*plan_recipes(source), *plan_efficiencies(source), *plan_megatron(source)]
    tuning = list(plan_tuning_rows(read_hardware(source["tuning"]["cluster"])))
    errors = [abs(row["deviation"]) for row in tuning]
    summary = {"median_error": median(errors), "worst": max(errors), "n": len(errors)}
    print(json.dumps({"published": rows, "tuning": {**summary, "rows": tuning}}, indent=1))
    return 0


def _row(name: str, published: float, predicted: float) -> dict[str, Any]:
    figures = {"published": published, "predicted": predicted}
    return {"name": name, **figures, "deviation": predicted / published - 1}


def _plan_words(words: list[str]) -> dict[str, Any]:
    recipe = compose_recipe(read_point(words))
    time: dict[str, Any] = plan_recipe(recipe).as_json()["time"]
    return time


def plan_recipes(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Plan recipes with published figures."""
    for item in source["recipes"]:
        predicted = _plan_words(item["words"])[item["key"]]
        yield _row(f"{item['words'][0]}: {item['name']}", item["published"], predicted)


def plan_efficiencies(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Plan the scaling of a recipe from few to many nodes."""
    for item in source["efficiencies"]:
        small, large = (
            _plan_words(item[key])["tokens_per_second_per_device"] for key in ("small", "large")
        )
        yield _row(f"{item['small'][0]}: {item['name']}", item["published"], large / small)


def plan_megatron(source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Plan Megatron-LM's published rows, with sequence parallelism and fused attention."""
    group = source["megatron"]
    for name, job, seconds in read_megatron(group["rows"]):
        predicted = plan_time(job, read_hardware(group["cluster"]), read_software(OURS).speed)
        yield _row(f"Megatron-LM {name}: step, s", seconds, predicted.total_seconds)


def read_megatron(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, TrainingJob, float]]:
    """Read the name, the job and the seconds of Megatron-LM's rows."""
    for item in rows:
        layers = stage_layers(item["layers"], item["pipeline"], "layers")
        job = _job(item, layers, vocabulary=50_304, fused=True)
        yield item["name"], job, job.tokens_per_step / item["tokens_per_second"]


def plan_tuning_rows(hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Plan the tuning rows with shape, layout and consistent speed on one kind of node."""
    speed = read_software(OURS).speed
    for name, job, seconds in read_tuning():
        yield _row(name, seconds, plan_time(job, hardware, speed).total_seconds)


def read_tuning() -> Iterator[tuple[str, TrainingJob, float]]:
    """Read the name, the job and the seconds of the consistent tuning rows."""
    file = DATA / "bloom_topology_benchmarks.csv"
    with file.open(encoding="utf-8", newline="") as lines:
        for cells in csv.DictReader(lines):
            job = tuning_job(cells)
            if job is not None:
                name = " ".join(
                    f"{key}={cells[key]}"
                    for key in ("date", "nlayers", "nhidden", "nheads", "dp", "tp", "pp", "mbs")
                )
                yield name, job, float(cells["sec_per_it"])


def tuning_job(cells: Mapping[str, str]) -> TrainingJob | None:
    """Read one tuning row; None if a number is missing or inconsistent."""
    try:
        numbers = {
            key: int(cells[key])
            for key in ("nlayers", "nhidden", "nheads", "dp", "tp", "pp", "mbs", "gbs")
        }
        seconds, rate = float(cells["sec_per_it"]), float(cells["tflops"])
    except ValueError:
        return None
    is_late = cells["date"] >= ENDS_SINCE
    item = {
        "dim": numbers["nhidden"],
        "heads": numbers["nheads"],
        "layers": numbers["nlayers"],
        "compute": "bfloat16" if is_late else "float16",
        "data": numbers["dp"],
        "tensor": numbers["tp"],
        "pipeline": numbers["pp"],
        "microbatches": numbers["gbs"] // (numbers["dp"] * numbers["mbs"]),
        "microbatch_sequences": numbers["mbs"],
    }
    balance: Literal["layers", "layers_and_ends"] = "layers_and_ends" if is_late else "layers"
    stages = stage_layers(numbers["nlayers"], numbers["pp"], balance)
    job = _job(item, stages, vocabulary=250_880, fused=False)
    consistent = abs(logged_tflops(job, seconds) / rate - 1) < MOST_INCONSISTENT
    return job if consistent else None


def logged_tflops(job: TrainingJob, seconds: float) -> float:
    """Return the TFLOP/s that Megatron-DeepSpeed logs, with full recomputation.

    96 B s L h^2 (1 + s / 6 h + V / 16 L h), where B s is the tokens per step (Narayanan et al.
    2021, arXiv 2104.04473, equation 3).
    """
    shape, length = job.shape, job.sequence_length
    layers, dim = shape.num_layers, shape.dim
    ends = 1 + length / (6 * dim) + shape.padded_vocab_size / (16 * layers * dim)
    flops = 96 * job.tokens_per_step * layers * dim**2 * ends
    return flops / seconds / job.layout.num_ranks / 1e12


@cache
def read_hardware(cluster: str) -> Hardware:
    """Read the hardware of a cluster profile."""
    file = ROOT / "conf" / "cluster" / f"{cluster}.yaml"
    tree = yaml.safe_load(file.read_text("utf-8"))
    return read_section(Hardware, tree["hardware"], str(file))


def _job(
    item: Mapping[str, Any], stages: Sequence[range], *, vocabulary: int, fused: bool
) -> TrainingJob:
    """Return a GPT job of Megatron, with mixed precision and ZeRO-1."""
    shape = decoder_shape(
        dim=item["dim"],
        layers=item["layers"],
        heads=item["heads"],
        ffn_dim=4 * item["dim"],
        vocabulary=vocabulary,
        tied=True,
        gated=False,
    )
    return mixed_precision_job(
        shape=shape,
        layout=dense_layout(
            data=item["data"],
            tensor=item["tensor"],
            pipeline=item["pipeline"],
            zero=1,
            sequence_parallel=fused,
            microbatch_sequences=item.get("microbatch_sequences", 1),
            recompute="none" if fused else "full",
        ),
        devices_per_node=4 if fused else 8,
        layers_by_stage=tuple(map(len, stages)),
        head_stage=len(stages) - 1,
        sequence_length=SEQUENCE_LENGTH,
        microbatches=item["microbatches"],
        compute=item["compute"],
        fused_attention=fused,
    )


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)
