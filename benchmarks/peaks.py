"""Measure the hardware figures of a cluster profile: matrix products, memory, collectives.

    python -m benchmarks.peaks                                 # one device
    python -m benchmarks.peaks recipe=NAME cluster=NAME        # also products of the layers;
        # grouped products of experts relative to a dense product of the same FLOPs
    torchrun --nproc-per-node=4 -m benchmarks.peaks            # also the links inside a node
    srun -N 8 --ntasks-per-node=4 python -m benchmarks.peaks ranks=32 per_node=4  # and between

Prints YAML: ``hardware``, as in a file of ``conf/cluster``, and the measured shapes. The
products of layers use the compute type of the recipe on this device, even if the CPU has no
instruction for that type. Rates are medians. The rate of a collective is its bus bandwidth:
bytes per second times 2 (n - 1) / n for an all-reduce and (n - 1) / n for an all-gather of the
whole tensor (NVIDIA, nccl-tests, doc/PERFORMANCE.md). All groups of a node communicate at once.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml

from benchmarks.entry import run_script
from benchmarks.machine import describe_machine
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.distributed.devices import compute_dtype, device_type
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.products import layer_products
from components.profiling.collective_rates import measure_collectives
from components.profiling.rates import (
    ROUNDS,
    copy_bandwidth,
    large_bytes,
    median_seconds,
    product_teraflops,
    square_teraflops,
)
from components.train.ranks import rank_variables

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NATIVE = {"cpu": (torch.float32,)}  # many CPUs have no instructions for the other types
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
PeakFigures = dict[str, Any]


def main(words: Sequence[str]) -> int:
    """Measure on every rank and print on the first rank."""
    sizes = dict(w.split("=", 1) for w in words if w.startswith(("ranks=", "per_node=")))
    others = [word for word in words if word.partition("=")[0] not in sizes]
    ranks, per_node = (int(sizes.get(key, "1")) for key in ("ranks", "per_node"))
    os.environ.update(rank_variables(os.environ, ranks=ranks, per_node=per_node))
    kind = device_type("auto")
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    device = torch.device(kind, local) if kind != "cpu" else torch.device(kind)
    if kind != "cpu":
        torch.get_device_module(kind).set_device(device)
    recipe = compose_recipe(read_point(others)) if others else None
    dtype = compute_dtype(recipe.precision.compute if recipe else "float32", device)
    dtypes = dict.fromkeys((*NATIVE.get(kind, DTYPES), dtype))
    best = {_dtype_name(t): _round(square_teraflops(t, device)) for t in dtypes}
    bandwidth = _round(copy_bandwidth(device))
    figures: PeakFigures = {
        "machine": _describe_device(device),
        "hardware": {"gemm_teraflops": best, "memory_gigabytes_per_second": bandwidth},
    }
    if recipe:
        job = job_from_recipe(recipe)
        figures["products"] = list(_measure_products(job, dtype, device, best))
    if "RANK" in os.environ:
        dist.init_process_group(BACKENDS[kind])
        figures["hardware"] |= _measure_links(device)
        dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(yaml.safe_dump(figures, sort_keys=False))
    return 0


def _describe_device(device: torch.device) -> PeakFigures:
    name = describe_machine()["processor"]
    if device.type != "cpu":
        name = torch.get_device_module(device.type).get_device_name(device)
    return {"device": name, "torch": str(torch.__version__), "rounds": ROUNDS}


def _measure_products(
    job: TrainingJob, dtype: torch.dtype, device: torch.device, best: PeakFigures
) -> Iterator[PeakFigures]:
    """Measure the products of a recipe's layers relative to the large square product."""
    for product in layer_products(job):
        rows, columns, depth = (
            max(1, round(size)) for size in (product.rows, product.columns, product.depth)
        )
        reached = product_teraflops(rows, columns, depth, dtype, device)
        experts = round(product.times)
        yield {
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "dtype": _dtype_name(dtype),
            "teraflops": _round(reached),
            "fraction": _round(reached / best[_dtype_name(dtype)]),
            **_grouped_rate(experts, rows, columns, depth, dtype, device),
        }


def _grouped_rate(
    experts: int, rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> PeakFigures:
    """Measure the grouped product of all experts relative to a dense one of the same FLOPs.

    If torch has no kernel for grouped products, this measures torch's loop over the experts.
    """
    if experts < 2:
        return {}
    pairs = experts * rows
    dense = product_teraflops(pairs, columns, depth, dtype, device)
    tokens = torch.randn(pairs, depth, device=device).to(dtype)
    stack = torch.randn(experts, columns, depth, device=device).to(dtype).mT
    ends = torch.arange(1, experts + 1, dtype=torch.int32, device=device) * rows
    seconds = median_seconds(lambda: F.grouped_mm(tokens, stack, offs=ends), device)
    reached = 2e-12 * pairs * columns * depth / seconds
    return {
        "experts": experts,
        "grouped_teraflops": _round(reached),
        "share_of_dense": _round(reached / dense),
    }


def _measure_links(device: torch.device) -> PeakFigures:
    """Measure groups inside each node, and groups of all ranks of 2, 4, 8, ... nodes."""
    on_node, size = int(os.environ["LOCAL_WORLD_SIZE"]), large_bytes(device.type)
    rates = measure_collectives(device, [size], per_node=on_node)
    links: PeakFigures = {}
    for level, nodes in (("inside", 1), ("across", 2)):
        if own := [rate for rate in rates if rate.nodes == nodes]:
            latency, reduced, gathered = own
            links[level] = {
                "all_reduce_gigabytes_per_second": _round(reduced.gigabytes_per_second),
                "all_gather_gigabytes_per_second": _round(gathered.gigabytes_per_second),
                "latency_seconds": _round(latency.seconds),
            }
    if "across" in links:
        links["across"]["by_nodes"] = [
            [rate.nodes, _round(rate.gigabytes_per_second)]
            for rate in rates
            if rate.nodes > 1 and (rate.collective, rate.bytes) == ("all_reduce", size)
        ]
    return links


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _round(value: float) -> float:
    """Round to four digits, the precision of the measurement."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    run_script(main)
