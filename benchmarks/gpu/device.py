"""The device of a case: name, memory size and peak memory."""

from typing import Any

import torch

from benchmarks.gpu.cases import CPU
from components.distributed.devices import device_type, peak_memory_bytes


def this_device() -> torch.device:
    """Return the first device of the kind that torch detects."""
    kind = device_type("auto")
    return torch.device(kind) if kind == "cpu" else torch.device(kind, 0)


def device_name(device: torch.device) -> str:
    """Return the name of the device from its driver."""
    if device.type == "cpu":
        return CPU
    return str(torch.get_device_module(device.type).get_device_name(device))


def memory_gib(device: torch.device) -> float:
    """Return the memory size of a device; infinite for a CPU."""
    if device.type == "cpu":
        return float("inf")
    properties = torch.get_device_module(device.type).get_device_properties(device)
    return float(properties.total_memory / 2**30)


def peak_memory(device: torch.device) -> dict[str, Any]:
    """Return the peaks of allocated and reserved memory; for a CPU, the peak of the process."""
    reserved = None
    if device.type != "cpu":
        reserved = torch.get_device_module(device.type).max_memory_reserved(device)
    return {"peak_bytes": peak_memory_bytes(device), "reserved_bytes": reserved}
