"""The measured figures of a machine are what a profile takes."""

import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from command.arguments import ROOT
from components.config.schema.cluster import Hardware

SMALL = (
    *("recipe=playbook1b", "cluster=hopper", "budget.sequence_length=64", "model.dim=64"),
    *("model.attention.head_dim=16", "model.mlp.ffn_dim=128", "budget.global_batch_tokens=512"),
    *("parallelism.microbatch_sequences=1", "cluster.nodes=1"),
)


def measured(*words: str, ranks: int, per_node: int) -> Any:
    """Run so many ranks, as if ``per_node`` of them were on each node."""
    program = [sys.executable, "-m", "benchmarks.peaks", *words]
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_000 + os.getpid() % 1_000)}
    names |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(per_node)}
    names |= {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            program,
            cwd=ROOT,
            env=os.environ | names | {"RANK": str(rank), "LOCAL_RANK": str(rank % per_node)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks
    assert not any(outputs[1:])
    return yaml.safe_load(outputs[0])


@pytest.mark.long
def test_what_four_ranks_on_two_nodes_measure_is_a_profile() -> None:
    found = measured(*SMALL, "precision.compute=float32", ranks=4, per_node=2)
    profile = yaml.safe_load((ROOT / "conf" / "cluster" / "hopper.yaml").read_text("utf-8"))
    hardware = profile["hardware"]
    links = {
        level: hardware[level] | found["hardware"][level] for level in ("inside", "across")
    }
    read = Hardware.model_validate(hardware | found["hardware"] | links)
    assert read.inside.all_reduce_gigabytes_per_second
    assert read.inside.latency_seconds
    (nodes, rate), *further = read.across.by_nodes
    assert (nodes, further) == (2, [])
    assert rate == pytest.approx(read.across.all_reduce_gigabytes_per_second, rel=2)
    # 32 heads of 16 for queries, keys and values; what attention gives; up and gate; down
    shapes = [(one["columns"], one["depth"]) for one in found["products"]]
    assert shapes == [(3 * 512, 64), (64, 512), (2 * 128, 64), (64, 128)]
    for one in found["products"]:
        assert one["rows"] == 64
        best = found["hardware"]["gemm_teraflops"]["float32"]
        assert one["fraction"] == pytest.approx(one["teraflops"] / best, rel=1e-2)


@pytest.mark.long
@pytest.mark.parametrize(("compute", "dtype"), [("bfloat16", "bfloat16"), ("auto", "float32")])
def test_products_are_of_the_type_that_the_recipe_computes_in_here(
    compute: str, dtype: str
) -> None:
    """A CPU has a figure for bfloat16 only where a recipe insists on it."""
    found = measured(*SMALL, f"precision.compute={compute}", ranks=1, per_node=1)
    assert set(found["hardware"]["gemm_teraflops"]) == {"float32", dtype}
    best = found["hardware"]["gemm_teraflops"][dtype]
    assert len(found["products"]) == 4
    for one in found["products"]:
        assert one["dtype"] == dtype
        assert one["fraction"] == pytest.approx(one["teraflops"] / best, rel=1e-2)
