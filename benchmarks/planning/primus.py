"""How do our plans of memory compare with AMD Primus' projection, on the same measured layouts?

The layouts are those of `planner_accuracy` that ran. Primus' analytical ``projection memory``
runs from a checkout of github.com/AMD-AGI/Primus, with a Python of its own that has PyYAML,
numpy and torch. It does not divide dense weights by tensor ranks, so layouts without tensor
ranks are a group of their own. ``projection performance`` has no figure here: it measures on a
GPU, or needs Origami, which is built with ROCm and knows only MI300A to MI355X.

    python -m benchmarks.planning.primus CHECKOUT PYTHON
"""

import json
import subprocess
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.entry import run_script
from benchmarks.planning.measured import DEVICES_PER_NODE, MeasuredLayout, read_rows
from benchmarks.planning.planner_accuracy import TABLE, read_campaign
from benchmarks.results_store import RESULTS, result_context, save_tree
from components.child_process import python_environment
from components.errors import RecipeError
from components.planner.memory import rank_memory

RESULT = RESULTS / "primus.json"
# Runs in Primus' environment: layouts from the standard input, projected bytes of rank 0.
PROJECT = """
import json, os, sys
from primus.core.projection.module_profilers.language_model import build_profiler
from primus.core.projection.training_config import (
    ModelConfig, ModelParallelConfig, RuntimeConfig, TrainingConfig)
from primus.core.projection.workload_registry import resolve_top_level_spec

def project(layout):
    os.environ.update(NNODES=str(layout["nodes"]), GPUS_PER_NODE=str(layout["devices"]))
    model, run = ModelConfig(**layout["model"]), RuntimeConfig(**layout["run"])
    config = TrainingConfig(model, run, ModelParallelConfig(**layout["parallel"]))
    profiler = build_profiler(resolve_top_level_spec(config))
    states = profiler.estimated_num_params(rank=0) * profiler.get_num_bytes_per_param()
    size = run.micro_batch_size, run.sequence_length
    return states + profiler.estimated_activation_memory(*size)

print(json.dumps([project(layout) for layout in json.load(sys.stdin)]))
"""


def describe_layout(row: MeasuredLayout) -> dict[str, Any]:
    """Return a measured layout in the fields of Primus' configuration."""
    shape, layout = row.job.shape, row.job.layout
    attention = shape.attention
    return {
        "nodes": row.nodes,
        "devices": DEVICES_PER_NODE,
        "model": {
            "num_layers": shape.num_layers,
            "hidden_size": shape.dim,
            "padded_vocab_size": shape.padded_vocab_size,
            "ffn_hidden_size": shape.mlp.ffn_dim,
            "num_attention_heads": attention.num_heads,
            "kv_channels": attention.head_dim,
            "group_query_attention": True,
            "num_query_groups": attention.num_kv_heads,
            "use_flash_attn": True,
            "swiglu": True,
            "moe_pattern": [0] * shape.num_layers,
            "share_embeddings_and_output_weights": shape.tied_embeddings,
        },
        "run": {
            "global_batch_size": row.job.tokens_per_step // row.job.sequence_length,
            "micro_batch_size": round(row.job.microbatch_tokens / row.job.sequence_length),
            "sequence_length": row.job.sequence_length,
            "data_parallel_size": layout.data_shard,
        },
        "parallel": {
            "tensor_model_parallel_size": layout.tensor,
            "pipeline_model_parallel_size": layout.pipeline,
            "use_distributed_optimizer": layout.zero > 0,
        },
    }


def project_layouts(
    rows: Sequence[MeasuredLayout], checkout: str, interpreter: str
) -> list[float]:
    """Return the bytes of rank 0 that Primus projects for each layout."""
    text = json.dumps([describe_layout(row) for row in rows])
    projected: list[float] = json.loads(
        _print_of(interpreter, "-c", PROJECT, checkout=checkout, text=text).splitlines()[-1]
    )
    return projected


def _print_of(*words: str, checkout: str, text: str = "") -> str:
    """Run a program in the checkout, as its rank 0."""
    process = subprocess.run(
        words,
        cwd=checkout,
        env=python_environment() | {"PYTHONPATH": checkout, "RANK": "0"},
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return process.stdout


def summarize_errors(
    planned: Sequence[float], rows: Sequence[MeasuredLayout]
) -> dict[str, float]:
    """Return median and 90th percentile of the errors relative to the reserved memory."""
    deviations = [
        size / row.reserved_bytes - 1 for size, row in zip(planned, rows, strict=True)
    ]
    errors = [abs(deviation) for deviation in deviations]
    return {
        "median_error": median(errors),
        "p90_error": float(np.quantile(errors, 0.9)),
        "median_deviation": median(deviations),
    }


def main(words: Sequence[str]) -> int:
    """Compare both planners and save the errors.

    Raises:
        RecipeError: the arguments are not a checkout and a Python.
    """
    if len(words) != 2:
        problem = f"{len(words)} arguments instead of two"
        raise RecipeError("arguments", problem, "name the checkout and its Python")
    _, software, fitted = read_campaign()
    rows = [row for row in read_rows(TABLE) if row.ran]
    projected = project_layouts(rows, *words)
    ours = [rank_memory(row.job, 0, software.memory).peak_bytes for row in rows]
    groups = {
        "all": [*range(len(rows))],
        "new node counts": [i for i, row in enumerate(rows) if row.nodes not in fitted],
        "without tensor ranks": [i for i, row in enumerate(rows) if row.job.layout.tensor == 1],
    }
    revision = _print_of("git", "rev-parse", "HEAD", checkout=words[0])
    context = result_context(
        peer=f"Primus {revision[:8]}, projection memory (analytical)",
        convention="planned over reserved bytes of rank 0; our constants were fitted on other "
        "node counts of this campaign, Primus has no constants for NVIDIA or nanotron",
        shape={"layouts": len(rows), "fitted_nodes": fitted},
        packages=(),
    )
    errors = {
        planner: {
            name: {"n": len(group)}
            | summarize_errors([sizes[i] for i in group], [rows[i] for i in group])
            for name, group in groups.items()
        }
        for planner, sizes in (("ours", ours), ("primus", projected))
    }
    print(json.dumps(errors, indent=1))
    save_tree(RESULT, context | {"errors": errors})
    return 0


if __name__ == "__main__":
    run_script(main)
