"""Do gradients and updated weights travel while a rank computes?

Two ranks of one thread each take steps of a small decoder, dense or with experts, over a
virtual link on which the exchange takes as long as the backward pass (without root, over this
host's loopback). Our engine at ZeRO 1, 2 and 3 stands beside itself without overlap and with
nothing sent, and beside torch's DDP and `fully_shard` of the same model and optimizer. All take
turns in one run; a turn takes as long as its slower rank. What is hidden is

    1 - (with overlap - nothing sent) / (without overlap - nothing sent)

    python -m benchmarks.training.overlap
"""

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
import yaml
from rich.table import Table
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT, circumstances
from benchmarks.paired import paired_ratio
from benchmarks.training.link import LOOPBACK, ProcessPlace, can_link, linked
from command.arguments import read_point
from command.compose import compose_recipe
from components.build import build
from components.distributed import collectives
from components.distributed.data import DataParallel, shard_weights
from components.distributed.devices import StateDtypes
from components.distributed.mesh import Degrees, Mesh, build_mesh
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.model.moe import expert_layers, take_rows
from components.terminal import console

RESULT = RESULTS / "overlap.json"
RANKS, WARMUP_ROUNDS, ROUNDS = 2, 2, 9
SEQUENCES, LENGTH, BUCKET_ELEMENTS = 2, 256, 2**20
STAGES = (1, 2, 3)
PEERS = ("DDP", "fully_shard")
# Recipes at full size, and what is smaller of them.
MODELS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/data/overlap.yaml").read_text())
VOCAB_SIZE = 4_096
OURS = {f"zero {zero}": zero for zero in STAGES}
LATE, UNSENT = "zero {}, no overlap", "zero {}, nothing sent"
EVEN = StateDtypes(*[torch.float32] * 4)
Step = Callable[[Tensor], None]
Seconds = dict[str, list[float]]


def decoder_of(model: str) -> Decoder:
    """Build a decoder of the shapes above, initialized."""
    composed = compose_recipe(read_point(["scale=full", *MODELS[model]]))
    decoder = build(composed.model, "model")
    assert isinstance(decoder, Decoder)
    draw_weights(decoder, seed=0)
    return decoder


def loss_of(model: nn.Module, rows: Tensor, decoder: Decoder) -> Tensor:
    """Return the mean loss of (sequences, length + 1) tokens."""
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

    def step(rows: Tensor) -> None:
        parallel.begin(1)
        torch.autograd.backward(loss_of(decoder, rows, decoder))
        parallel.reduce()
        optimizer.step()
        parallel.spread()

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

    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, rows, decoder))
        optimizer.step()

    return step


def unsent(step: Step, rows: Tensor) -> None:
    """Take a step whose collectives return at once, with whatever was there."""
    done = Mock(return_value=Mock(wait=Mock()))
    with (
        patch.multiple(collectives, all_gather=done, reduce_scatter=done),
        patch.object(dist, "all_reduce", done),
    ):
        step(rows)


def sides_of(model: str, mesh: Mesh) -> dict[str, Step]:
    """Make every side, each of a copy of the model."""
    decoder = decoder_of(model)
    sides: dict[str, Step] = {}
    for name, zero in OURS.items():
        make = partial(our_step, mesh=mesh, zero=zero)
        sides[name] = make(copy.deepcopy(decoder), overlap=True)
        if zero < 3:  # fully_shard always overlaps
            sides[LATE.format(zero)] = make(copy.deepcopy(decoder), overlap=False)
            alone = make(copy.deepcopy(decoder), overlap=True)
            sides[UNSENT.format(zero)] = partial(unsent, alone)
    for peer in PEERS:
        sides[peer] = their_step(copy.deepcopy(decoder), mesh, peer=peer)
    return sides


def measure_rank(rank: int, folder: Path) -> None:
    """Let all sides take turns, and leave their seconds; the slower rank's count."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    degrees = Degrees(
        pipeline=1, data_replicate=1, data_shard=RANKS, expert=1, context=1, tensor=1
    )
    order = ("pipeline", "data", "expert", "context", "tensor")
    mesh = build_mesh("cpu", degrees, order, expert_aware=True)
    generator = torch.Generator().manual_seed(rank)
    found: dict[str, Seconds] = {}
    for model in MODELS:
        sides = sides_of(model, mesh)
        seconds: Seconds = {side: [] for side in sides}
        for _ in range(WARMUP_ROUNDS + ROUNDS):
            rows = torch.randint(VOCAB_SIZE, (SEQUENCES, LENGTH + 1), generator=generator)
            for side, step in sides.items():
                dist.barrier()
                began = time.perf_counter()
                step(rows)
                slower = torch.tensor(time.perf_counter() - began)
                dist.all_reduce(slower, dist.ReduceOp.MAX)
                seconds[side].append(slower.item())
        found[model] = {side: sofar[WARMUP_ROUNDS:] for side, sofar in seconds.items()}
    (folder / f"{rank}.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def measure(places: Sequence[ProcessPlace]) -> dict[str, Seconds]:
    """Run both ranks, each in its place."""
    with tempfile.TemporaryDirectory() as name:
        command = (sys.executable, "-m", "benchmarks.training.overlap")
        ranks = [
            subprocess.Popen(
                [*place.words, *command, str(rank), name],
                env=os.environ | dict(place.environment),
            )
            for rank, place in enumerate(places)
        ]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
        found: dict[str, Seconds] = json.loads(Path(name, "0.json").read_text("utf-8"))
        return found


def row_of(link: str, model: str, seconds: Seconds) -> dict[str, Any]:
    """Describe what each stage hides, and how it stands beside the quicker peer."""
    medians = {side: statistics.median(sofar) for side, sofar in seconds.items()}
    hidden = {}
    for name, zero in OURS.items():
        if zero < 3:
            late, none = medians[LATE.format(zero)], medians[UNSENT.format(zero)]
            hidden[name] = 1 - (medians[name] - none) / (late - none)
    best = min(PEERS, key=medians.__getitem__)
    ratios = {name: paired_ratio(seconds[best], seconds[name]) for name in OURS}
    return {
        "link": link,
        "model": model,
        "seconds": medians,
        "hidden": hidden,
        "best_peer": best,
        "ratio": ratios,
    }


def exchange_gigabits(found: Seconds, model: str) -> float:
    """Choose the link on which gradients take as long as two thirds of a step alone."""
    numbers = sum(weight.numel() for weight in decoder_of(model).parameters())
    backward = statistics.median(found[UNSENT.format(1)]) * 2 / 3
    return numbers * 4 * 8 * (RANKS - 1) / RANKS / backward / 1e9


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print what was found."""
    table = Table(title="one step of two ranks, ms; hidden; ours by the better peer")
    for head in ("link", "model", "side", "ms", "hidden", "peer by ours"):
        table.add_column(head, justify="right")
    for row in rows:
        for side, seconds in row["seconds"].items():
            hidden, ratio = row["hidden"].get(side), row["ratio"].get(side)
            table.add_row(
                *(row["link"], row["model"], side, f"{1_000 * seconds:.0f}"),
                "" if hidden is None else f"{hidden:.0%}",
                "" if ratio is None else f"{ratio['median']:.2f}",
            )
    console(width=120).print(table)


def main(words: Sequence[str]) -> None:
    """Measure over the loopback, then over a link as slow as the step; keep what was found."""
    if words:
        rank, folder = words
        measure_rank(int(rank), Path(folder))
        return
    with nullcontext(LOOPBACK) as places:
        found = measure(places)
    rows = [row_of("loopback", model, seconds) for model, seconds in found.items()]
    if can_link():
        gigabits = round(exchange_gigabits(found["dense"], "dense"), 2)
        with linked(gigabits) as places:
            found = measure(places)
        rows += [row_of(f"{gigabits:g} Gbit/s", *pair) for pair in found.items()]
    show(rows)
    said = circumstances(
        peer="torch's DistributedDataParallel and fully_shard",
        convention="seconds of a step of the slower of two ranks of one thread each, float32, "
        "gloo, AdamW; medians, and of the better peer's by ours the median of paired ratios; "
        "hidden: of what is exposed without overlap",
        shape={"models": MODELS}
        | {"sequences": SEQUENCES, "length": LENGTH, "ranks": RANKS, "rounds": ROUNDS},
        packages=("torch",),
    )
    RESULT.write_text(json.dumps(said | {"rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    enter(main, most=2)
