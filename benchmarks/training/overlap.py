"""Do gradients and updated weights travel while a rank computes?

Two ranks of one thread each take steps of a small decoder, dense or with experts, over a
virtual link of this host (it takes root) on which gradients and weights of a step travel for as
long as the backward pass computes. Our engine at ZeRO 1, 2 and 3 stands beside itself without
overlap and with nothing sent, and beside torch's DDP and `fully_shard` of the same model and
optimizer. All take turns in one run; a turn takes as long as its slower rank. What is hidden is

    1 - (with overlap - nothing sent) / (without overlap - nothing sent)

Without overlap all is sent after the passes. ZeRO 2 sends with one microbatch what 1 does, so
1's time stands for it: alone it waits for each bucket, while the other rank computes.

At ZeRO 3, which is torch's `fully_shard`, overlap is the device's, whose streams run side by
side. A CPU has none, and no other way; there the link's own seconds stand for "without".

    python -m benchmarks.training.overlap
"""

import copy
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.entry import enter
from benchmarks.kept import ROOT, circumstances
from benchmarks.planning.measured import dense_layout
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from benchmarks.training.exchanges import scatter_once, sending, unsent
from benchmarks.training.link import LOOPBACK, linked
from benchmarks.training.two_ranks import RANKS, Seconds, be_rank, measure_ranks, take_turns
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build
from components.distributed import collectives
from components.distributed.data import DataParallel, shard_weights
from components.distributed.devices import StateDtypes
from components.distributed.mesh import Mesh, build_mesh
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.model.moe import expert_layers, take_rows

# The peer's time by ours; the hidden part of what is exposed without overlap.
LEAST_OVERLAPPED, LEAST_HIDDEN = 0.95, 0.7
WARMUP_ROUNDS, ROUNDS = 1, 9
SEQUENCES, LENGTH, BUCKET_ELEMENTS = 8, 384, 2**17
# Recipes at full size, and what is smaller of them.
MODELS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/data/overlap.yaml").read_text())
VOCAB_SIZE = 1_024
OURS = {f"zero {zero}": zero for zero in (1, 2, 3)}
# As many bytes for each stage: DDP's all-reduce is ZeRO 1's scatter and gather.
PEERS = {"zero 1": ("DDP", "fully_shard"), "zero 2": ("DDP", "fully_shard")} | {
    "zero 3": ("fully_shard",)
}
LATE, UNSENT = "{}, no overlap", "{}, nothing sent"
EVEN = StateDtypes(*[torch.float32] * 4)
Step = Callable[[], object]


def decoder_of(model: str) -> Decoder:
    """Build a decoder of the shapes above, initialized."""
    composed = compose_recipe(read_point(["scale=full", *MODELS[model]]))
    decoder = build(composed.model, "model")
    assert isinstance(decoder, Decoder)
    draw_weights(decoder, seed=0)
    return decoder


def loss_of(model: nn.Module, decoder: Decoder) -> Tensor:
    """Return the mean loss of drawn tokens."""
    rows = torch.randint(VOCAB_SIZE, (SEQUENCES, LENGTH + 1))
    loss: Tensor = model(rows[:, :-1], targets=rows[:, 1:])
    take_rows(expert_layers(decoder))  # balances are not of interest here
    return loss


def our_step(decoder: Decoder, mesh: Mesh, *, zero: int, overlap: bool) -> Step:
    """Return one step of our engine's data axis."""
    if zero == 3:
        shard_weights(decoder, mesh, dtypes=EVEN)
    parallel = DataParallel(
        [decoder],
        mesh,
        zero=zero,
        dtypes=EVEN,
        bucket_elements=BUCKET_ELEMENTS,
        overlap=overlap,
    )
    optimizer = torch.optim.AdamW([one.parameter for one in parallel.shards], fused=True)

    def step() -> None:
        parallel.spread()  # what the update before left: a turn has all of its exchange
        parallel.begin(1)
        torch.autograd.backward(loss_of(decoder, decoder))
        parallel.reduce()
        optimizer.step()

    return step


def their_step(decoder: Decoder, mesh: Mesh, *, peer: str) -> Step:
    """Return one step of torch's DDP or `fully_shard`, layer by layer."""
    model: nn.Module = decoder
    if peer == "DDP":
        megabytes = BUCKET_ELEMENTS * 4 / 2**20
        model = DistributedDataParallel(
            decoder, bucket_cap_mb=megabytes, gradient_as_bucket_view=True
        )
    else:
        for layer in decoder.layers.values():
            fully_shard(layer, mesh=mesh.dense.shard)
        fully_shard(decoder, mesh=mesh.dense.shard)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, decoder))
        optimizer.step()

    return step


def sides_of(model: str, mesh: Mesh) -> dict[str, Step]:
    """Make every side, each of a copy of the model."""
    decoder = decoder_of(model)
    sides: dict[str, Step] = {}
    for name, zero in OURS.items():
        make = partial(our_step, mesh=mesh, zero=zero)
        sides[name] = make(copy.deepcopy(decoder), overlap=True)
        if zero == 1:
            sides[LATE.format(name)] = make(copy.deepcopy(decoder), overlap=False)
        if zero != 2:  # which with one microbatch computes what 1 does
            sides[UNSENT.format(name)] = make(copy.deepcopy(decoder), overlap=True)
    for peer in ("DDP", "fully_shard"):
        sides[peer] = their_step(copy.deepcopy(decoder), mesh, peer=peer)
    sent = partial(sending, gather=collectives.all_gather, scatter=scatter_once)
    return {
        side: partial(unsent if side.endswith(UNSENT.format("")) else sent, step)
        for side, step in sides.items()
    }


def find(models: Sequence[str], *, alone: bool) -> dict[str, Seconds]:
    """Let all sides of some models take turns, or of each the one that sends nothing."""
    mesh = build_mesh("cpu", dense_layout(data=RANKS, zero=1))
    torch.manual_seed(dist.get_rank())
    found = {}
    for model in models:
        sides = sides_of(model, mesh)
        one = UNSENT.format("zero 1")
        asked = {one: sides[one]} if alone else sides
        found[model] = take_turns(asked, warmup=WARMUP_ROUNDS, rounds=3 if alone else ROUNDS)
    return found


def sent_bytes(model: str) -> int:
    """Count what a rank sends in a step of ZeRO 1: rows of gradients, and of weights."""
    numbers = sum(weight.numel() for weight in decoder_of(model).parameters())
    return 2 * numbers * 4 * (RANKS - 1) // RANKS


def gigabits_for(model: str, alone: Seconds) -> float:
    """Choose the link that takes as long as a backward pass: two thirds of a step alone."""
    (seconds,) = alone.values()
    return round(8 * sent_bytes(model) / (statistics.median(seconds) * 2 / 3) / 1e9, 3)


def row_of(model: str, gigabits: float, seconds: Seconds) -> dict[str, Any]:
    """Describe what each stage hides, and how it stands beside its quicker peer."""
    medians = {side: statistics.median(sofar) for side, sofar in seconds.items()}
    exchange = 8 * sent_bytes(model) / gigabits / 1e9
    sides = {}
    for name, zero in OURS.items():
        none = medians[UNSENT.format("zero 3" if zero == 3 else "zero 1")]
        late = none + exchange * 3 / 2 if zero == 3 else medians[LATE.format("zero 1")]
        best = min(PEERS[name], key=medians.__getitem__)
        sides[name] = {
            "seconds": medians[name],
            "seconds_without_overlap": late,
            "seconds_unsent": none,
            "hidden": 1 - (medians[name] - none) / (late - none),
            "peer": best,
            "peer_seconds": medians[best],
            "ratio": paired_ratio(seconds[best], seconds[name]),
        }
    return {"model": model, "gigabits": gigabits, "exchange_seconds": exchange, "sides": sides}


def ratios_of(rows: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Take each stage's ratio to its quicker peer, and the part of the exchange it hides."""
    ratios = []
    for row in rows:
        for name, side in row["sides"].items():
            case = f"{row['model']}, {name.replace('zero', 'ZeRO')}"
            ratios += [
                Ratio(case, side["peer"], at_least=LEAST_OVERLAPPED, **interval(side["ratio"])),
                Ratio(f"{case}, hidden", "no overlap", side["hidden"], at_least=LEAST_HIDDEN),
            ]
    return ratios


def main(words: Sequence[str]) -> int:
    """Find each model's link, measure over it, and keep the result."""
    script = "benchmarks.training.overlap"
    if words:
        rank, folder, *models = words
        task = partial(find, models or [*MODELS], alone=not models)
        be_rank(int(rank), Path(folder), task)
        return 0
    rows = []
    for model, alone in measure_ranks(script, LOOPBACK).items():
        gigabits = gigabits_for(model, alone)
        with linked(gigabits) as places:
            rows.append(row_of(model, gigabits, measure_ranks(script, places, model)[model]))
    context = circumstances(
        peer="torch's DistributedDataParallel and fully_shard",
        convention="seconds of a step of the slower of two ranks of one thread each, float32, "
        "gloo, AdamW; medians, and of the better peer's by ours the median of paired ratios; "
        "hidden: of what is exposed without overlap",
        shape={"models": MODELS}
        | {"sequences": SEQUENCES, "length": LENGTH, "ranks": RANKS, "rounds": ROUNDS},
        packages=("torch",),
    )
    return keep_result("overlap", context | {"rows": rows}, ratios_of(rows))


if __name__ == "__main__":
    enter(main)
