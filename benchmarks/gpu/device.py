"""The device that a case runs on: its name, its memory, how full that became."""

from typing import Any

import torch

from benchmarks.gpu.cases import CPU
from components.distributed.devices import device_type, peak_memory_bytes


def this_device() -> torch.device:
    """Return the first device of the kind that torch sees here."""
    kind = device_type("auto")
    return torch.device(kind) if kind == "cpu" else torch.device(kind, 0)


def name_of(device: torch.device) -> str:
    """Name the device as its driver does."""
    if device.type == "cpu":
        return CPU
    return str(torch.get_device_module(device.type).get_device_name(device))


def gib_of(device: torch.device) -> float:
    """Return the memory of a device; a CPU's is not asked for."""
    if device.type == "cpu":
        return float("inf")
    properties = torch.get_device_module(device.type).get_device_properties(device)
    return float(properties.total_memory / 2**30)


def memory_of(device: torch.device) -> dict[str, Any]:
    """Give what the allocator gave out and kept at the most; of a CPU, of the whole process."""
    reserved = None
    if device.type != "cpu":
        reserved = torch.get_device_module(device.type).max_memory_reserved(device)
    return {"peak_bytes": peak_memory_bytes(device), "reserved_bytes": reserved}
