"""Measured rates of a device: matrix products and memory copies.

A rate is the median of :data:`ROUNDS` calls. The preflight of each node imports this file, so
it does not import torch's compiler, which takes seconds.
"""

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS, WARM_UP = 10, 3


def large_rows(kind: str) -> int:
    """Return a matrix size large enough to reach the device's best rate."""
    return 512 if kind == "cpu" else 8_192


def large_bytes(kind: str) -> int:
    """Return the bytes of a copy or message large enough to reach the link's best rate."""
    return 1 << (24 if kind == "cpu" else 28)


def product_teraflops(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return the TFLOP/s of a product of ``rows`` x ``depth`` and ``depth`` x ``columns``."""
    left = torch.randn(rows, depth, device=device).to(dtype)
    right = torch.randn(depth, columns, device=device).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype, device=device)
    seconds = median_seconds(lambda: torch.mm(left, right, out=out), device)
    return 2e-12 * rows * columns * depth / seconds


def square_teraflops(dtype: torch.dtype, device: torch.device) -> float:
    """Return the TFLOP/s of a large square product."""
    rows = large_rows(device.type)
    return product_teraflops(rows, rows, rows, dtype, device)


def copy_bandwidth(device: torch.device) -> float:
    """Return the GB/s of a large copy in a device's memory, read and written bytes."""
    size = large_bytes(device.type)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device) / 1e9


def bus_bandwidth(kind: str, ranks: int, size: int, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second for a total message of ``size`` bytes.

    The factor is 2 (n - 1) / n for an all-reduce and (n - 1) / n for an all-gather: NVIDIA,
    nccl-tests, doc/PERFORMANCE.md.
    """
    return size / seconds * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)


def median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a call, synchronizing with the device."""

    def wait_for_device() -> None:
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    times = []
    for number in range(WARM_UP + ROUNDS):
        wait_for_device()
        began = time.perf_counter()
        call()
        wait_for_device()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    return statistics.median(times)
