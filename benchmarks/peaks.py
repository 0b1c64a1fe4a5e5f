"""What does this machine reach? Measure a profile's figures: products, memory, collectives.

    python -m benchmarks.peaks                                 # one device
    python -m benchmarks.peaks recipe=NAME cluster=NAME        # and the products of its layers,
        # experts' also all at once, beside a dense product of the same FLOPs
    torchrun --nproc-per-node=4 -m benchmarks.peaks            # the links inside a node, too
    srun -N 8 --ntasks-per-node=4 python -m benchmarks.peaks ranks=32 per_node=4  # and across

Prints YAML: ``hardware`` as a file of ``conf/cluster`` has it, and beside it what was measured
in which shape. Layers are multiplied in the type that the recipe computes in on this device,
which a CPU may know no instruction of. Rates are medians. A collective's is its bus bandwidth:
bytes over seconds times 2 (n - 1) / n for an all-reduce and (n - 1) / n for an all-gather of
the whole (NVIDIA, nccl-tests, doc/PERFORMANCE.md), while all groups of a node talk at once.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.entry import enter
from benchmarks.machine import machine
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.distributed.collectives import all_gather
from components.distributed.devices import compute_dtype, device_type
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.products import layer_products
from components.preflight.devices import (
    ROUNDS,
    bus_bandwidth,
    large_bytes,
    large_rows,
    median_seconds,
    product_teraflops,
)
from components.train.ranks import rank_variables

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NATIVE = {"cpu": (torch.float32,)}  # of the others many CPUs know no instruction
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
Figures = dict[str, Any]


def main(words: Sequence[str]) -> int:
    """Measure on every rank and print on the first."""
    own = dict(word.split("=", 1) for word in words if word.startswith(("ranks=", "per_node=")))
    kept = [word for word in words if word.partition("=")[0] not in own]
    ranks, per_node = (int(own.get(key, "1")) for key in ("ranks", "per_node"))
    os.environ.update(rank_variables(os.environ, ranks=ranks, per_node=per_node))
    kind = device_type("auto")
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    device = torch.device(kind, local) if kind != "cpu" else torch.device(kind)
    if kind != "cpu":
        torch.get_device_module(kind).set_device(device)
    recipe = compose_recipe(read_point(kept)) if kept else None
    dtype = compute_dtype(recipe.precision.compute if recipe else "float32", device)
    hardware = _alone(device, [*dict.fromkeys((*NATIVE.get(kind, DTYPES), dtype))])
    found: Figures = {"machine": _machine(device), "hardware": hardware}
    if recipe:
        best = hardware["gemm_teraflops"]
        found["products"] = list(_products(job_from_recipe(recipe), dtype, device, best))
    if "RANK" in os.environ:
        dist.init_process_group(BACKENDS[kind])
        found["hardware"] |= _links(device)
        dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(yaml.safe_dump(found, sort_keys=False))
    return 0


def _machine(device: torch.device) -> Figures:
    name = machine()["processor"]
    if device.type != "cpu":
        name = torch.get_device_module(device.type).get_device_name(device)
    return {"device": name, "torch": str(torch.__version__), "rounds": ROUNDS}


def _alone(device: torch.device, dtypes: Sequence[torch.dtype]) -> Figures:
    """Measure one device: large square products in each type, and copies."""
    rows, size = large_rows(device.type), large_bytes(device.type)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = median_seconds(lambda: target.copy_(source), device)
    return {
        "gemm_teraflops": {
            _name(dtype): _figure(product_teraflops(rows, rows, rows, dtype, device))
            for dtype in dtypes
        },
        "memory_gigabytes_per_second": _figure(2 * size / copied / 1e9),
    }


def _products(
    job: TrainingJob, dtype: torch.dtype, device: torch.device, best: Figures
) -> Iterator[Figures]:
    """Measure the products of a recipe's layers, each beside the large one."""
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
            "dtype": _name(dtype),
            "teraflops": _figure(reached),
            "fraction": _figure(reached / best[_name(dtype)]),
            **(_grouped(experts, rows, columns, depth, dtype, device) if experts > 1 else {}),
        }


def _grouped(
    experts: int, rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> Figures:
    """Measure the products of all experts at once beside a dense one of the same FLOPs.

    Where torch has no kernel for it, it loops over the experts: then the loop is measured.
    """
    pairs = experts * rows
    dense = product_teraflops(pairs, columns, depth, dtype, device)
    given = torch.randn(pairs, depth, device=device).to(dtype)
    stack = torch.randn(experts, columns, depth, device=device).to(dtype).mT
    ends = torch.arange(1, experts + 1, dtype=torch.int32, device=device) * rows
    seconds = median_seconds(lambda: F.grouped_mm(given, stack, offs=ends), device)
    reached = 2e-12 * pairs * columns * depth / seconds
    return {
        "experts": experts,
        "grouped_teraflops": _figure(reached),
        "share_of_dense": _figure(reached / dense),
    }


def _links(device: torch.device) -> Figures:
    """Measure groups inside each node, and groups of all ranks of 2, 4, 8, ... nodes."""
    on_node, size = int(os.environ["LOCAL_WORLD_SIZE"]), large_bytes(device.type)
    nodes = dist.get_world_size() // on_node
    found: Figures = {}
    if on_node > 1:
        mesh = init_device_mesh(device.type, (nodes, on_node), mesh_dim_names=("node", "on"))
        found["inside"] = _link(mesh.get_group("on"), size, device)
    if nodes > 1:
        counts = [2**power for power in range(1, nodes.bit_length()) if 2**power <= nodes]
        groups = {n: dist.new_group(list(range(n * on_node))) for n in counts}
        first = _link(groups[2], size, device)
        by_nodes = [[n, _rate("all_reduce", groups[n], size, device)] for n in counts]
        found["across"] = {**first, "by_nodes": by_nodes}
    return found


def _link(group: dist.ProcessGroup, size: int, device: torch.device) -> Figures:
    return {
        "all_reduce_gigabytes_per_second": _rate("all_reduce", group, size, device),
        "all_gather_gigabytes_per_second": _rate("all_gather", group, size, device),
        "latency_seconds": _latency(group, device),
    }


def _rate(kind: str, group: dist.ProcessGroup, size: int, device: torch.device) -> float | None:
    """Return the bus bandwidth in GB/s; who is not in the group waits."""
    ranks = dist.get_world_size(group) if dist.get_rank(group) >= 0 else 1
    seconds = None
    if ranks > 1:
        numbers = size // 4 // ranks * ranks
        whole = torch.ones(numbers, device=device)
        part = torch.ones(numbers // ranks, device=device)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(whole, group=group),
            "all_gather": lambda: all_gather(whole, part, group=group),
        }
        seconds = median_seconds(calls[kind], device)
    dist.barrier()
    return _figure(bus_bandwidth(kind, ranks, size, seconds) / 1e9) if seconds else None


def _latency(group: dist.ProcessGroup, device: torch.device) -> float | None:
    seconds = None
    if dist.get_rank(group) >= 0:
        number = torch.ones(1, device=device)
        seconds = _figure(median_seconds(lambda: dist.all_reduce(number, group=group), device))
    dist.barrier()
    return seconds


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _figure(value: float) -> float:
    """Keep four digits: more were not measured."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    enter(main)
