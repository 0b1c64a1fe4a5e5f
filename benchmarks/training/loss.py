"""What do head and loss in blocks cost, beside logits of all tokens and torch's own loss?

Each measurement is one forward and backward pass in a process of its own, so that neither way
finds memory that the other left; the two take turns, and the medians are compared. Memory is
the highest resident size, less what the process held before the pass.

    python -m benchmarks.training.loss [DIM]
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, circumstances
from benchmarks.machine import resident_bytes
from benchmarks.speed.wanted import MOST_LOSS_MEMORY, MOST_LOSS_TIME
from components.child_process import python_environment
from components.model.loss import penalized_cross_entropy

RESULT = RESULTS / "loss.json"
TOKENS, ROWS, DIM = 4_096, 250_880, 256
THREADS, ROUNDS = 2, 3
WAYS = ("ours", "plain")

Measurement = dict[str, float]


def loss_of(way: str, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss the way that is named."""
    if way == "ours":
        return penalized_cross_entropy(hidden, weight, targets)[0]
    return F.cross_entropy(F.linear(hidden, weight), targets)


def measure_here(way: str, dim: int) -> Measurement:
    """Take one forward and backward pass in this process."""
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


def measure_apart(way: str, dim: int) -> Measurement:
    """Take one pass in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.training.loss", str(dim), way]
    result = subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, check=True
    )
    measurement: Measurement = json.loads(result.stdout)
    return measurement


def medians(rounds: list[Measurement]) -> Measurement:
    """Take the median of each quantity over the rounds of one way."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def ratios(ours: Mapping[str, float], plain: Mapping[str, float]) -> Measurement:
    """Divide our figures by the plain way's."""
    return {name: ours[name] / plain[name] for name in plain}


def summarize(dim: int, measured: dict[str, list[Measurement]]) -> dict[str, object]:
    """Turn the measurement into what is kept as data."""
    middle = {way: medians(rounds) for way, rounds in measured.items()}
    return {
        **circumstances(
            peer="torch's cross_entropy of logits of all tokens",
            convention="head and loss, forward and backward, float32, one pass a process, ways "
            "in turn; medians; peak_bytes is resident memory above that before the pass, both "
            "gradients included; ratio is ours by plain",
            shape={"tokens": TOKENS, "rows": ROWS, "dim": dim, "threads": THREADS},
            packages=("torch",),
        ),
        "ratio": ratios(middle["ours"], middle["plain"]),
        "most_allowed": {"peak_bytes": MOST_LOSS_MEMORY, "seconds": MOST_LOSS_TIME},
        "median": middle,
        "rounds": measured,
    }


def main(words: Sequence[str]) -> None:
    """Measure, keep, show; with a way behind the width, take one measurement of it here."""
    dim = int(words[0]) if words else DIM
    if words[1:]:
        print(json.dumps(measure_here(words[1], dim)))
    else:
        compare(dim)


def compare(dim: int) -> None:
    """Measure both ways in turns, keep, show."""
    measured: dict[str, list[Measurement]] = {way: [] for way in WAYS}
    for index in range(ROUNDS):
        for way in sorted(WAYS, reverse=bool(index % 2)):
            measured[way].append(measure_apart(way, dim))
    summary = summarize(dim, measured)
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps({**kept, f"dim_{dim}": summary}, indent=2) + "\n")
    for way, rounds in measured.items():
        one = medians(rounds)
        print(f"{way:5}  {one['peak_bytes'] / 2**30:6.2f} GiB  {one['seconds']:7.2f} s")
    ratio = ratios(medians(measured["ours"]), medians(measured["plain"]))
    print(f"ratio  {ratio['peak_bytes']:6.3f} memory, {ratio['seconds']:.3f} time")


if __name__ == "__main__":
    enter(main, most=2)
