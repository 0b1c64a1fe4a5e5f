"""Do tokens travel to experts, and back, while other tokens are computed?

Two ranks of one thread each hold half of the experts and mix, forward and backward, with both
dispatches; `parallelism.expert_overlap` says in how many parts tokens go. Beside them stand the
same pass with nothing sent, and with nothing computed, in one part and in most: the longer one
is what no overlap can go below. All take turns in one run; a turn takes as long as its slower
rank. The link between the ranks is this host's loopback, and where we are root a virtual one of
a chosen speed.

    python -m benchmarks.training.dispatch
"""

import statistics
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

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from benchmarks.training.link import LOOPBACK, ProcessPlace, can_link, linked
from benchmarks.training.two_ranks import RANKS, Seconds, be_rank, measure_ranks, take_turns
from components.distributed import collectives
from components.distributed.experts import ExchangedMixture, GatheredMixture
from components.model.expert_products import Matrices
from components.model.mlp import ACTIVATIONS
from components.model.moe import Mixture

TOKENS, DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 2_048, 512, 256, 64, 8
WARMUP_ROUNDS, ROUNDS = 2, 11
GIGABITS = (1.0, 4.0)
OVERLAPS = (1, 2, 4)
KINDS = {"all_gather": GatheredMixture, "all_to_all": ExchangedMixture}
PARTS = tuple(f"{overlap} parts" for overlap in OVERLAPS)
UNSENT, UNCOMPUTED = "nothing sent", tuple(f"nothing computed, {x}" for x in (1, OVERLAPS[-1]))
SIDES = {
    **dict(zip(PARTS, OVERLAPS, strict=True)),
    UNSENT: 1,
    UNCOMPUTED[0]: 1,
    UNCOMPUTED[1]: OVERLAPS[-1],
}


class PassThrough(Mixture):
    """Give the rows back: all that is left is their way."""

    def forward(self, tokens: Tensor, weights: Tensor, *others: Any) -> Tensor:
        return tokens * weights[:, :1]


def keep_rows(rows: Tensor, **others: Any) -> collectives.Started:
    """Stand for an even exchange."""
    return rows.clone(), None


def repeat_rows(rows: Tensor, **others: Any) -> collectives.Started:
    """Stand for a gather."""
    return rows.repeat(RANKS, 1), None


def first_rows(rows: Tensor, **others: Any) -> collectives.Started:
    """Stand for a sum."""
    return rows[: len(rows) // RANKS].clone(), None


def draw() -> tuple[Tensor, ...]:
    """Draw a rank's tokens, with as many for each expert, and its part of the experts."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randn(TOKENS, DIM, generator=generator)
    weights = torch.rand(TOKENS, TOP_K, generator=generator)
    places = torch.arange(TOKENS * TOP_K).view(TOKENS, TOP_K) % NUM_EXPERTS
    experts = places[torch.randperm(TOKENS, generator=generator)]
    here = NUM_EXPERTS // RANKS
    shapes = [(here, FFN_DIM, DIM), (here, FFN_DIM, DIM), (here, DIM, FFN_DIM)]
    stacks = [torch.randn(*shape, generator=generator) / DIM**0.5 for shape in shapes]
    return tokens, weights, experts, *stacks


def mix(side: str, dispatch: str, mesh: DeviceMesh, given: Sequence[Tensor]) -> None:
    """Take one pass forward and backward."""
    inner = (PassThrough if side in UNCOMPUTED else Mixture)(path="auto")
    mixture = KINDS[dispatch](inner, mesh, overlap=SIDES[side])
    tokens, weights, experts, *stacks = given
    learned = [one.detach().requires_grad_() for one in (tokens, weights, *stacks)]
    unsent: dict[str, Any] = {
        "start_gather": repeat_rows,
        "start_sum": first_rows,
        "_exchange": keep_rows,
    }
    with patch.multiple(collectives, **unsent) if side == UNSENT else nullcontext():
        gate, up, down = learned[2:]
        matrices = Matrices(gate, up, down, ACTIVATIONS["silu"])
        mixed = mixture(*learned[:2], experts, matrices)
        mixed.backward(tokens)


def find() -> dict[str, Seconds]:
    """Let all sides of both dispatches take turns."""
    mesh, given = init_device_mesh("cpu", (RANKS,)), draw()
    found: dict[str, Seconds] = {}
    for dispatch in KINDS:
        sides = {side: partial(mix, side, dispatch, mesh, given) for side in SIDES}
        found[dispatch] = take_turns(sides, warmup=WARMUP_ROUNDS, rounds=ROUNDS)
    return found


def row_of(link: str, dispatch: str, seconds: Seconds) -> dict[str, Any]:
    """Describe how much quicker parts are, and what part of what could be hidden they hide."""
    medians = {side: statistics.median(sofar) for side, sofar in seconds.items()}
    whole = seconds[PARTS[0]]
    ways = map(min, *(seconds[side] for side in UNCOMPUTED))
    limit = [max(pair) for pair in zip(seconds[UNSENT], ways, strict=True)]
    return {
        "link": link,
        "dispatch": dispatch,
        "seconds": medians,
        "ratio": {
            **{side: paired_ratio(whole, seconds[side]) for side in PARTS[1:]},
            "at most": paired_ratio(whole, limit),
        },
    }


def ratios_of(rows: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Take the ratios of every link and dispatch."""
    return [
        Ratio(f"{row['dispatch']}, {row['link']}, {side}", PARTS[0], **interval(paired))
        for row in rows
        for side, paired in row["ratio"].items()
    ]


def main(words: Sequence[str]) -> int:
    """Measure each link, and keep the result; with two words be a rank."""
    if words:
        rank, folder = words
        be_rank(int(rank), Path(folder), find)
        return 0
    rows = []
    links: dict[str, AbstractContextManager[Sequence[ProcessPlace]]] = {
        "loopback": nullcontext(LOOPBACK)
    }
    if can_link():
        links |= {f"{rate:g} Gbit/s": linked(rate) for rate in GIGABITS}
    for name, link in links.items():
        with link as places:
            found = measure_ranks("benchmarks.training.dispatch", places)
        rows += [row_of(name, dispatch, seconds) for dispatch, seconds in found.items()]
    context = circumstances(
        peer="our own dispatch in one part",
        convention="seconds of a mixture forward and backward, of the slower of two ranks with "
        "one thread each, float32, gloo, even load; medians of paired ratios of turns in one "
        "run; at most: one part by the longer of nothing sent and, in one part or in most, "
        "nothing computed",
        shape={
            "tokens_per_rank": TOKENS,
            "dim": DIM,
            "ffn_dim": FFN_DIM,
            "num_experts": NUM_EXPERTS,
            "top_k": TOP_K,
            "ranks": RANKS,
            "rounds": ROUNDS,
        },
        packages=("torch",),
    )
    return keep_result("dispatch", context | {"rows": rows}, ratios_of(rows))


if __name__ == "__main__":
    enter(main, most=2)
