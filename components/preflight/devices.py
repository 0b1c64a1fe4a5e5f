"""Devices of a node: there, free, and how fast; links between nodes, one pair at a time.

Each node meets two others: who is slow with both is slow itself.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.cluster import Preflight
from components.config.schema.sections import Cluster
from components.distributed import devices as torch_devices
from components.errors import RecipeError
from components.preflight.verdict import NodeFinding, Rates, refused

GIB = 2**30
ROUNDS, WARM_UP = 10, 3
Pair = tuple[int, int]


def large_rows(kind: str) -> int:
    """Return the rows of a product whose rate is the device's best."""
    return 512 if kind == "cpu" else 8_192


def large_bytes(kind: str) -> int:
    """Return the bytes of a copy or message whose rate is the link's best."""
    return 1 << (24 if kind == "cpu" else 28)


def product_teraflops(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Measure a product of ``rows`` x ``depth`` and ``depth`` x ``columns``."""
    left = torch.randn(rows, depth, device=device).to(dtype)
    right = torch.randn(depth, columns, device=device).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype, device=device)
    seconds = median_seconds(lambda: torch.mm(left, right, out=out), device)
    return 2e-12 * rows * columns * depth / seconds


def bus_bandwidth(kind: str, ranks: int, size: int, seconds: float) -> float:
    """Return bytes a second past each rank, of a message of ``size`` bytes in whole.

    2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather: NVIDIA, nccl-tests,
    doc/PERFORMANCE.md.
    """
    return size / seconds * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)


def median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Time a call that may be over on the host before it is on the device."""

    def settle() -> None:
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    times = []
    for number in range(WARM_UP + ROUNDS):
        settle()
        began = time.perf_counter()
        call()
        settle()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def devices_here(cluster: Cluster) -> list[torch.device]:
    """Name the devices that this node's ranks will have; the CPU is one, whatever its ranks."""
    kind = torch_devices.device_type(cluster.device)
    if torch_devices.misses_profile(cluster):
        return []
    if kind == "cpu":
        return [torch.device("cpu")]
    count = min(torch_devices.count_devices(kind), cluster.devices_per_node)
    return [torch.device(kind, number) for number in range(count)]


def check_count(cluster: Cluster) -> NodeFinding:
    """Compare the devices that torch sees with those of the profile."""
    kind = torch_devices.device_type(cluster.device)
    wanted = "GPUs" if torch_devices.misses_profile(cluster) else kind
    expected = "a CPU" if wanted == "cpu" else f"{cluster.devices_per_node} {wanted}"
    try:
        torch_devices.check_devices(cluster)
    except RecipeError as error:
        return refused("devices", error).model_copy(update={"expected": expected})
    cores, seen = len(os.sched_getaffinity(0)), torch_devices.count_devices
    return NodeFinding(
        check="devices",
        found=f"{cores} cores" if kind == "cpu" else f"{seen(kind)} {kind}",
        expected=expected,
        rule="cluster.devices_per_node",
        verdict="ok",
        remedy="",
    )


def check_memory(
    cluster: Cluster, rules: Preflight, devices: Sequence[torch.device]
) -> NodeFinding:
    """Find the device with the least free memory, and compare it with the profile.

    A CPU's memory is its node's: without a profile nobody knows how much of it is meant.
    """
    spaces = []
    for device in devices:
        try:
            spaces.append(free_bytes(device))
        except RuntimeError as error:  # a device that no longer answers stays in torch's list
            return NodeFinding(
                check="memory",
                found=f"{device}: {str(error).partition(chr(10))[0]}",
                expected="an answer of each device",
                rule="cluster.preflight.memory_fraction",
                verdict="bad",
                remedy="tell the site: a device does not answer there",
            )
    free, total = min(spaces, default=(0, 0))
    hardware = cluster.hardware
    on_device = any(device.type != "cpu" for device in devices)
    whole = total if on_device else None
    if not isinstance(hardware, str):
        whole = hardware.memory_bytes * (1 if on_device else cluster.devices_per_node)
    needed = rules.memory_fraction * (whole or 0)
    return NodeFinding(
        check="memory",
        found=f"{free / GIB:.1f} GiB free",
        expected=f"at least {needed / GIB:.1f} GiB" if whole else "no figure",
        rule="cluster.preflight.memory_fraction",
        verdict="unknown" if whole is None else "ok" if free >= needed else "bad",
        remedy="who else computes here? a process of an earlier job may be left over",
    )


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Return free and all memory of a device; of a CPU what Linux could hand out."""
    if device.type != "cpu":
        free, total = torch.get_device_module(device.type).mem_get_info(device)
        return int(free), int(total)
    # What can be had without swapping: proc(5), MemAvailable.
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable"))
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(line.split()[1]) * 1024, whole


def slowest_teraflops(devices: Sequence[torch.device], dtype: torch.dtype) -> float:
    """Measure a large square product on each device, one after the other."""
    rows = large_rows(devices[0].type)
    return min(product_teraflops(rows, rows, rows, dtype, device) for device in devices)


def rounds_of_pairs(count: int) -> list[list[Pair]]:
    """Deal the neighbours of a ring of ``count`` nodes to rounds in which each meets one.

    Two rounds, three for an odd number of nodes.
    """
    line = [(first, first + 1) for first in range(count - 1)]
    if count <= 2:
        return [line] if line else []
    even, odd, closing = line[::2], line[1::2], (0, count - 1)
    return [even, [*odd, closing]] if count % 2 == 0 else [even, odd, [closing]]


def measure_links(
    names: Sequence[str], own: str, store: Store, device: torch.device, seconds: float
) -> Rates:
    """Measure an all-reduce with each neighbour.

    A round waits ``seconds`` longer than the one before: whoever waited for a dead node there
    comes late to the next.
    """
    me, found = names.index(own), Rates()
    for number, pairs in enumerate(rounds_of_pairs(len(names)), start=1):
        for pair in pairs:
            if me in pair:
                rank, patience = pair.index(me), number * seconds
                found[names[pair[1 - rank]]] = _meet(pair, rank, store, device, patience)
    return found


def _meet(
    pair: Pair, rank: int, store: Store, device: torch.device, seconds: float
) -> float | None:
    size = large_bytes(device.type)
    try:
        dist.init_process_group(
            torch_devices.group_backend(device.type),
            store=PrefixStore(f"link/{pair[0]}-{pair[1]}", store),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=seconds),
        )
        numbers = torch.ones(size // 4, device=device)
        took = median_seconds(lambda: dist.all_reduce(numbers), device)
    except RuntimeError:  # what every back end raises where the other does not come
        return None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return bus_bandwidth("all_reduce", 2, size, took) / 1e9
