"""Checks of a node's devices (count, free memory, speed) and of links between pairs of nodes.

Each node measures links to two other nodes. A node that is slow with both is slow itself.
"""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.cluster import Preflight
from components.config.schema.sections import Cluster
from components.distributed import devices as torch_devices
from components.errors import RecipeError
from components.preflight.verdict import (
    NodeFinding,
    Rates,
    finding_from_error,
    judge_value,
    make_finding,
)
from components.profiling.rates import (
    bus_bandwidth,
    large_bytes,
    large_rows,
    median_seconds,
    product_teraflops,
)

GIB = 2**30
Pair = tuple[int, int]


def devices_here(cluster: Cluster) -> list[torch.device]:
    """Return the devices of this node's ranks. All CPU ranks share one device."""
    kind = torch_devices.device_type(cluster.device)
    if torch_devices.misses_profile(cluster):
        return []
    if kind == "cpu":
        return [torch.device("cpu")]
    count = min(torch_devices.count_devices(kind), cluster.devices_per_node)
    return [torch.device(kind, number) for number in range(count)]


def check_count(cluster: Cluster) -> NodeFinding:
    """Compare the devices that torch finds with the cluster's profile."""
    kind = torch_devices.device_type(cluster.device)
    wanted = "GPUs" if torch_devices.misses_profile(cluster) else kind
    expected = "a CPU" if wanted == "cpu" else f"{cluster.devices_per_node} {wanted}"
    try:
        torch_devices.check_devices(cluster)
    except RecipeError as error:
        return finding_from_error("devices", error, expected)
    if kind == "cpu":
        return make_finding("devices", f"{len(os.sched_getaffinity(0))} cores", expected, "ok")
    return make_finding(
        "devices", f"{torch_devices.count_devices(kind)} {kind}", expected, "ok"
    )


def check_memory(
    cluster: Cluster, rules: Preflight, devices: Sequence[torch.device]
) -> NodeFinding:
    """Compare the least free memory of all devices with the profile.

    CPU ranks use the node's memory. Without a profile, their required memory is unknown.
    """
    spaces = []
    for device in devices:
        try:
            spaces.append(torch_devices.free_bytes(device))
        except RuntimeError as error:  # torch still lists a device that fails
            answer = f"{device}: {str(error).partition(chr(10))[0]}"
            remedy = "report the node to the site: a device does not answer"
            return make_finding(
                "memory", answer, "an answer of each device", "bad", remedy=remedy
            )
    free, total = min(spaces, default=(0, 0))
    hardware = cluster.hardware
    on_device = any(device.type != "cpu" for device in devices)
    whole = total if on_device else None
    if not isinstance(hardware, str):
        whole = hardware.memory_bytes * (1 if on_device else cluster.devices_per_node)
    needed = rules.memory_fraction * (whole or 0)
    expected = f"at least {needed / GIB:.1f} GiB" if whole else "no figure"
    verdict = judge_value(free, None if whole is None else needed)
    return make_finding("memory", f"{free / GIB:.1f} GiB free", expected, verdict)


def slowest_teraflops(devices: Sequence[torch.device], dtype: torch.dtype) -> float:
    """Return the lowest TFLOP/s of a large square product over the devices, run in turn."""
    rows = large_rows(devices[0].type)
    return min(product_teraflops(rows, rows, rows, dtype, device) for device in devices)


def rounds_of_pairs(count: int) -> list[list[Pair]]:
    """Return two rounds of ring neighbors, three if odd; a node is in one pair per round."""
    line = [(first, first + 1) for first in range(count - 1)]
    if count <= 2:
        return [line] if line else []
    even, odd, closing = line[::2], line[1::2], (0, count - 1)
    return [even, [*odd, closing]] if count % 2 == 0 else [even, odd, [closing]]


def measure_links(
    names: Sequence[str], own: str, store: Store, device: torch.device, seconds: float
) -> Rates:
    """Return the all-reduce rate with each neighbor.

    The timeout grows by ``seconds`` per round: a node that waited for a dead node is late for
    the next round.
    """
    index, rates = names.index(own), Rates()
    for number, pairs in enumerate(rounds_of_pairs(len(names)), start=1):
        for pair in pairs:
            if index in pair:
                rank, patience = pair.index(index), number * seconds
                rates[names[pair[1 - rank]]] = _meet(pair, rank, store, device, patience)
    return rates


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
        elapsed = median_seconds(lambda: dist.all_reduce(numbers), device)
    except RuntimeError:  # every backend raises it if the other node is missing
        return None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return bus_bandwidth("all_reduce", 2, size, elapsed) / 1e9
