"""The measured figures of a machine are valid in a cluster profile."""

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


def measure_peaks(*words: str, ranks: int, per_node: int) -> Any:
    """Run the benchmark on several ranks, as if each node had ``per_node`` of them."""
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
def test_measurements_of_four_ranks_on_two_nodes_are_a_valid_profile() -> None:
    figures = measure_peaks(*SMALL, "precision.compute=float32", ranks=4, per_node=2)
    profile = yaml.safe_load((ROOT / "conf" / "cluster" / "hopper.yaml").read_text("utf-8"))
    hardware = profile["hardware"]
    links = {
        level: hardware[level] | figures["hardware"][level] for level in ("inside", "across")
    }
    merged = Hardware.model_validate(hardware | figures["hardware"] | links)
    assert merged.inside.all_reduce_gigabytes_per_second
    assert merged.inside.latency_seconds
    (nodes, rate), *others = merged.across.by_nodes
    assert (nodes, others) == (2, [])
    assert rate == pytest.approx(merged.across.all_reduce_gigabytes_per_second, rel=2)
    # queries, keys and values (32 heads of 16); attention output; up and gate; down
    shapes = [(product["columns"], product["depth"]) for product in figures["products"]]
    assert shapes == [(3 * 512, 64), (64, 512), (2 * 128, 64), (64, 128)]
    for product in figures["products"]:
        assert product["rows"] == 64
        best = figures["hardware"]["gemm_teraflops"]["float32"]
        assert product["fraction"] == pytest.approx(product["teraflops"] / best, rel=1e-2)


@pytest.mark.long
@pytest.mark.parametrize(("compute", "dtype"), [("bfloat16", "bfloat16"), ("auto", "float32")])
def test_products_have_the_compute_type_of_the_recipe(compute: str, dtype: str) -> None:
    """A CPU measures bfloat16 only if the recipe sets it."""
    figures = measure_peaks(*SMALL, f"precision.compute={compute}", ranks=1, per_node=1)
    assert set(figures["hardware"]["gemm_teraflops"]) == {"float32", dtype}
    best = figures["hardware"]["gemm_teraflops"][dtype]
    assert len(figures["products"]) == 4
    for product in figures["products"]:
        assert product["dtype"] == dtype
        assert product["fraction"] == pytest.approx(product["teraflops"] / best, rel=1e-2)
