"""What do head and loss in blocks cost, beside logits of all tokens and torch's own loss?

Each measurement is one forward and backward pass in a process of its own, so that neither way
finds memory that the other left; the two take turns, and the medians are compared. Memory is
the highest resident size, less what the process held before the pass.

    python -m benchmarks.training.loss [DIM ...]
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.machine import apart, resident_bytes
from benchmarks.ratios import Ratio, keep_result
from components.model.loss import penalized_cross_entropy

# Ours by logits of all tokens: seconds, and bytes at the peak.
TARGETS = {"seconds": 1.1, "peak_bytes": 0.25}
TOKENS, ROWS, DIMS = 4_096, 250_880, (256, 1_024)
THREADS, ROUNDS = 2, 3
WAYS = ("ours", "plain")

Measurement = dict[str, float]


def loss_of(way: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss the way that is named."""
    if way == "ours":
        return penalized_cross_entropy(hidden, weight, targets)[0]
    return F.cross_entropy(F.linear(hidden, weight), targets)


def measure(way: str, dim: int) -> Measurement:
    """Take one forward and backward pass; the process must be new."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    hidden = torch.empty(TOKENS, dim).normal_().requires_grad_()
    weight = torch.empty(ROWS, dim).normal_(std=0.02).requires_grad_()
    targets = torch.randint(ROWS, (TOKENS,))
    before = resident_bytes("VmRSS")
    wall, processing = time.perf_counter(), time.process_time()
    loss = loss_of(way, hidden, weight, targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    wall, processing = time.perf_counter() - wall, time.process_time() - processing
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "seconds": wall,
        "processor_seconds": processing,
        "peak_bytes": resident_bytes("VmHWM") - before,
        "loss": loss.item(),
        "hidden_gradient": hidden.grad.norm().item(),
        "weight_gradient": weight.grad.norm().item(),
    }


def medians(rounds: list[Measurement]) -> Measurement:
    """Take the median of each quantity over the rounds of one way."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def ratios_of(dim: int, ratio: Mapping[str, float]) -> list[Ratio]:
    """Take the ratios that have targets."""
    return [
        Ratio(
            f"dim {dim:,}, {quantity.replace('_', ' ')}",
            "logits of all tokens",
            ratio[quantity],
            at_most=most,
        )
        for quantity, most in TARGETS.items()
    ]


def compare(dim: int) -> dict[str, Any]:
    """Measure both ways in turns."""
    measured: dict[str, list[Measurement]] = {way: [] for way in WAYS}
    for index in range(ROUNDS):
        for way in sorted(WAYS, reverse=bool(index % 2)):
            measured[way].append(apart(measure, way, dim))
    middle = {way: medians(rounds) for way, rounds in measured.items()}
    ratio = {name: middle["ours"][name] / plain for name, plain in middle["plain"].items()}
    return {"ratio": ratio, "median": middle, "rounds": measured}


def main(words: Sequence[str]) -> int:
    """Compare at each width, and keep the result."""
    dims, status = [*map(int, words)] or DIMS, 0
    context = circumstances(
        peer="torch's cross_entropy of logits of all tokens",
        convention="head and loss, forward and backward, float32, one pass a process, ways "
        "in turn; medians; peak_bytes is resident memory above that before the pass, both "
        "gradients included; ratio is ours by plain",
        shape={"tokens": TOKENS, "rows": ROWS, "threads": THREADS},
        packages=("torch",),
    )
    for dim in dims:
        result = compare(dim)
        tree = context | {f"dim_{dim}": result | context}
        status |= keep_result("loss", tree, ratios_of(dim, result["ratio"]))
    return status


if __name__ == "__main__":
    enter(main)
