"""How fast a device multiplies and a link carries: short measurements, medians of rounds."""

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS, WARM_UP = 10, 3
# Large enough that starting costs nothing: of products (rows), copies and messages (bytes).
_LARGE_ROWS = {"cpu": 512}
_LARGE_BYTES = {"cpu": 1 << 24}
_ROWS, _BYTES = 8_192, 1 << 28


def large_rows(kind: str) -> int:
    """Return the rows of a product whose rate is the device's best."""
    return _LARGE_ROWS.get(kind, _ROWS)


def large_bytes(kind: str) -> int:
    """Return the bytes of a copy or message whose rate is the link's best."""
    return _LARGE_BYTES.get(kind, _BYTES)


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
