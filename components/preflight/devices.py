"""Are the devices there, is their memory free, and how fast is the slowest of them?"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from components.errors import RecipeError
from components.preflight.rates import large_rows, product_teraflops
from components.preflight.verdict import Finding, refused
from components.spec.preflight import Preflight
from components.spec.sections import Cluster
from components.train.devices import check_devices, count_devices, device_type, misses_profile

GIB = 2**30


def devices_here(cluster: Cluster) -> list[torch.device]:
    """Name the devices that this node's ranks will have; the CPU is one, whatever its ranks."""
    kind = device_type(cluster.device)
    if misses_profile(cluster):
        return []
    if kind == "cpu":
        return [torch.device("cpu")]
    seen = min(count_devices(kind), cluster.devices_per_node)
    return [torch.device(kind, number) for number in range(seen)]


def check_count(cluster: Cluster) -> Finding:
    """Compare the devices that torch sees with those of the profile."""
    kind = device_type(cluster.device)
    wanted = "GPUs" if misses_profile(cluster) else kind
    expected = "a CPU" if wanted == "cpu" else f"{cluster.devices_per_node} {wanted}"
    try:
        check_devices(cluster)
    except RecipeError as error:
        return refused("devices", error).model_copy(update={"expected": expected})
    cores = len(os.sched_getaffinity(0))
    found = f"{cores} cores" if kind == "cpu" else f"{count_devices(kind)} {kind}"
    return Finding(
        check="devices",
        found=found,
        expected=expected,
        rule="cluster.devices_per_node",
        verdict="ok",
        remedy="",
    )


def check_memory(
    cluster: Cluster, rules: Preflight, devices: Sequence[torch.device]
) -> Finding:
    """Find the device with the least free memory, and compare it with the profile.

    A CPU's memory is its node's: without a profile nobody knows how much of it is meant.
    """
    spaces = []
    for device in devices:
        try:
            spaces.append(free_bytes(device))
        except RuntimeError as error:  # whatever a broken device raises
            return _broken(device, error)
    free, total = min(spaces, default=(0, 0))
    hardware = cluster.hardware
    known = None if isinstance(hardware, str) else hardware.memory_bytes
    on_device = any(device.type != "cpu" for device in devices)
    if known is not None and not on_device:
        known *= cluster.devices_per_node
    whole = known or (total if on_device else None)
    needed = rules.memory_fraction * (whole or 0)
    return Finding(
        check="memory",
        found=f"{free / GIB:.1f} GiB free",
        expected=f"at least {needed / GIB:.1f} GiB" if whole else "no figure",
        rule="cluster.preflight.memory_fraction",
        verdict="unknown" if whole is None else "ok" if free >= needed else "bad",
        remedy="who else computes here? a process of an earlier job may be left over",
    )


def _broken(device: torch.device, error: RuntimeError) -> Finding:
    """Torch counts by the driver's list, in which a device stays that no longer answers."""
    return Finding(
        check="memory",
        found=f"{device}: {str(error).partition(chr(10))[0]}",
        expected="an answer of each device",
        rule="cluster.preflight.memory_fraction",
        verdict="bad",
        remedy="tell the site: a device does not answer there",
    )


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Return free and all memory of a device; of a CPU what Linux could hand out."""
    if device.type != "cpu":
        free, total = torch.get_device_module(device.type).mem_get_info(device)
        return int(free), int(total)
    return _available_bytes(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _available_bytes() -> int:
    """What can be had without swapping: proc(5), MemAvailable."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def slowest_teraflops(devices: Sequence[torch.device], dtype: torch.dtype) -> float:
    """Measure a large square product on each device, one after the other."""
    sizes = [large_rows(device.type) for device in devices]
    return min(
        product_teraflops(rows, rows, rows, dtype, device)
        for rows, device in zip(sizes, devices, strict=True)
    )
