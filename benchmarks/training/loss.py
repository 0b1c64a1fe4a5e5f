"""How fast are head and loss in blocks, compared with torch's loss of the logits of all tokens?

Each measurement is one forward and backward pass in a new process, so that freed memory of one
implementation is not reused by the other. The implementations alternate, and the medians are
compared. Memory is the peak of resident memory minus the memory before the pass.

    python -m benchmarks.training.loss [DIM ...]
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entry import run_script
from benchmarks.machine import call_in_process, resident_bytes, time_in_turns
from benchmarks.ratios import Ratio, save_result
from benchmarks.results_store import benchmark_context
from components.model.loss import penalized_cross_entropy

# Ours over logits of all tokens.
TARGETS = {"seconds": 1.1, "peak_bytes": 0.25}
TOKENS, ROWS, DIMS = 4_096, 250_880, (256, 1_024)
THREADS, ROUNDS = 2, 3
IMPLEMENTATIONS = ("ours", "plain")

Measurement = dict[str, float]


def compute_loss(name: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss with the implementation ``name``."""
    if name == "ours":
        return penalized_cross_entropy(hidden, weight, targets)[0]
    return F.cross_entropy(F.linear(hidden, weight), targets)


def measure_pass(implementation: str, dim: int, index: int) -> Measurement:
    """Measure the forward and backward pass of a round; the process must be new."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    hidden = torch.empty(TOKENS, dim).normal_().requires_grad_()
    weight = torch.empty(ROWS, dim).normal_(std=0.02).requires_grad_()
    targets = torch.randint(ROWS, (TOKENS,))
    before = resident_bytes("VmRSS")
    wall_start, processor_start = time.perf_counter(), time.process_time()
    loss = compute_loss(implementation, hidden, weight, targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    seconds = time.perf_counter() - wall_start
    processor_seconds = time.process_time() - processor_start
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "peak_bytes": resident_bytes("VmHWM") - before,
        "loss": loss.item(),
        "hidden_gradient": hidden.grad.norm().item(),
        "weight_gradient": weight.grad.norm().item(),
    }


def ratios_of(dim: int, ratio: Mapping[str, float]) -> list[Ratio]:
    """Return the ratios with targets."""
    return [
        Ratio(
            f"dim {dim:,}, {quantity.replace('_', ' ')}",
            "logits of all tokens",
            ratio[quantity],
            at_most=most,
        )
        for quantity, most in TARGETS.items()
    ]


def compare_losses(dim: int) -> dict[str, Any]:
    """Measure both implementations in alternation."""
    calls = {
        name: partial(call_in_process, measure_pass, name, dim) for name in IMPLEMENTATIONS
    }
    _, rounds = time_in_turns(calls, warmup=0, rounds=ROUNDS)
    measured = {name: [row[name] for row in rounds] for name in IMPLEMENTATIONS}
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in measured.items()
    }
    ratio = {key: medians["ours"][key] / plain for key, plain in medians["plain"].items()}
    return {"ratio": ratio, "median": medians, "rounds": measured}


def main(words: Sequence[str]) -> int:
    """Compare at each width and save the result."""
    dims, status = [*map(int, words)] or DIMS, 0
    context = benchmark_context("loss", {"tokens": TOKENS, "rows": ROWS, "threads": THREADS})
    for dim in dims:
        result = compare_losses(dim)
        tree = context | {f"dim_{dim}": result | context}
        status |= save_result("loss", tree, ratios_of(dim, result["ratio"]))
    return status


if __name__ == "__main__":
    run_script(main)
