"""Does the dispatch of tokens to experts overlap with computation?

Two ranks with one thread and half of the experts each run a forward and backward pass with both
dispatchers. `parallelism.expert_overlap` is the number of parts of the tokens. The limit of the
overlap is the longer of two other passes: without sending, and without computing (in one part
and in the largest number of parts). All variants alternate in one run; the slower rank counts.
The link between the ranks is the loopback, and for root also a virtual link of a set rate.

    python -m benchmarks.training.dispatch
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.entry import run_script
from benchmarks.machine import SecondsByName, medians_of
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from benchmarks.training.two_ranks import (
    LOOPBACK,
    RANKS,
    RankHost,
    can_create_link,
    create_link,
    measure_ranks,
    run_rank,
    time_alternating,
)
from components.distributed import collectives
from components.distributed.experts import AllGatherDispatcher, AllToAllDispatcher
from components.model.expert_products import Matrices
from components.model.mlp import ACTIVATIONS
from components.model.moe import Mixture

TOKENS, DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 2_048, 512, 256, 64, 8
WARMUP_ROUNDS, ROUNDS = 2, 11
GIGABITS = (1.0, 4.0)
OVERLAPS = (1, 2, 4)
KINDS = {"all_gather": AllGatherDispatcher, "all_to_all": AllToAllDispatcher}
PARTS = tuple(f"{overlap} parts" for overlap in OVERLAPS)
UNSENT, UNCOMPUTED = "nothing sent", tuple(f"nothing computed, {x}" for x in (1, OVERLAPS[-1]))
VARIANTS = {
    **dict(zip(PARTS, OVERLAPS, strict=True)),
    UNSENT: 1,
    UNCOMPUTED[0]: 1,
    UNCOMPUTED[1]: OVERLAPS[-1],
}


class PassThrough(Mixture):
    """Return the rows without computation, so that only the dispatch is measured."""

    def forward(self, tokens: Tensor, weights: Tensor, *others: Any) -> Tensor:
        return tokens * weights[:, :1]


def draw_inputs() -> tuple[Tensor, ...]:
    """Draw a rank's tokens with an even load per expert, and its part of the experts."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    weights = torch.rand(TOKENS, TOP_K, generator=generator)
    indices = torch.arange(TOKENS * TOP_K).view(TOKENS, TOP_K) % NUM_EXPERTS
    experts = indices[torch.randperm(TOKENS, generator=generator)]
    local = NUM_EXPERTS // RANKS
    shapes = [(local, FFN_DIM, DIM), (local, FFN_DIM, DIM), (local, DIM, FFN_DIM)]
    stacks = [torch.randn(*shape, generator=generator) / DIM**0.5 for shape in shapes]
    return tokens, weights, experts, *stacks


def run_pass(variant: str, dispatch: str, mesh: DeviceMesh, inputs: Sequence[Tensor]) -> None:
    """Run one forward and backward pass."""
    inner = (PassThrough if variant in UNCOMPUTED else Mixture)(path="auto")
    mixture = KINDS[dispatch](inner, mesh, overlap=VARIANTS[variant])
    tokens, weights, experts, *stacks = inputs
    leaves = [tensor.detach().requires_grad_() for tensor in (tokens, weights, *stacks)]
    # All-gather, reduce-scatter and even all-to-all, without communication.
    unsent: dict[str, Any] = {
        "start_gather": lambda rows, **others: (rows.repeat(RANKS, 1), None),
        "start_sum": lambda rows, **others: (rows[: len(rows) // RANKS].clone(), None),
        "_exchange": lambda rows, **others: (rows.clone(), None),
    }
    with patch.multiple(collectives, **unsent) if variant == UNSENT else nullcontext():
        gate, up, down = leaves[2:]
        matrices = Matrices(gate, up, down, ACTIVATIONS["silu"])
        output = mixture(*leaves[:2], experts, matrices)
        output.backward(tokens)


def measure_variants() -> dict[str, SecondsByName]:
    """Time all variants of both dispatchers in alternation."""
    mesh, inputs = init_device_mesh("cpu", (RANKS,)), draw_inputs()
    seconds: dict[str, SecondsByName] = {}
    for dispatch in KINDS:
        passes = {name: partial(run_pass, name, dispatch, mesh, inputs) for name in VARIANTS}
        seconds[dispatch] = time_alternating(passes, warmup=WARMUP_ROUNDS, rounds=ROUNDS)
    return seconds


def row_of(link: str, dispatch: str, seconds: SecondsByName) -> dict[str, Any]:
    """Return the speed-up of several parts, and the limit of the speed-up."""
    one_part = seconds[PARTS[0]]
    sending = map(min, *(seconds[name] for name in UNCOMPUTED))
    limit = [max(pair) for pair in zip(seconds[UNSENT], sending, strict=True)]
    return {
        "link": link,
        "dispatch": dispatch,
        "seconds": medians_of(seconds),
        "ratio": {
            **{name: paired_ratio(one_part, seconds[name]) for name in PARTS[1:]},
            "at most": paired_ratio(one_part, limit),
        },
    }


def ratios_of(rows: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Return the ratios of every link and dispatcher."""
    return [
        Ratio(f"{row['dispatch']}, {row['link']}, {name}", PARTS[0], **to_interval(paired))
        for row in rows
        for name, paired in row["ratio"].items()
    ]


def main(words: Sequence[str]) -> int:
    """Measure each link and save the result; with two arguments, run a rank."""
    if words:
        rank, folder = words
        run_rank(int(rank), Path(folder), measure_variants)
        return 0
    rows = []
    links: dict[str, AbstractContextManager[Sequence[RankHost]]] = {
        "loopback": nullcontext(LOOPBACK)
    }
    if can_create_link():
        links |= {f"{rate:g} Gbit/s": create_link(rate) for rate in GIGABITS}
    for name, link in links.items():
        with link as hosts:
            by_dispatch = measure_ranks("benchmarks.training.dispatch", hosts)
        rows += [row_of(name, dispatch, seconds) for dispatch, seconds in by_dispatch.items()]
    shape = {
        "tokens_per_rank": TOKENS,
        "dim": DIM,
        "ffn_dim": FFN_DIM,
        "num_experts": NUM_EXPERTS,
        "top_k": TOP_K,
        "ranks": RANKS,
        "rounds": ROUNDS,
    }
    return save_benchmark("dispatch", shape, {"rows": rows}, ratios_of(rows))


if __name__ == "__main__":
    run_script(main, max_words=2)
