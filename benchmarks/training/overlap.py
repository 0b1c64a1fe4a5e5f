"""Does the communication of gradients and updated weights overlap with computation?

Two ranks with one thread each run steps of a small decoder, dense or with experts. They use a
virtual link of this host (needs root), whose rate is set so that sending the gradients and
weights of a step takes as long as the backward pass. Our engine at ZeRO 1, 2 and 3 is compared
with itself without overlap and without sending, and with torch's DDP and `fully_shard` for the
same model and optimizer. All variants alternate; the slower rank counts. The hidden part is

    1 - (with overlap - without sending) / (without overlap - without sending)

Without overlap, everything is sent after the passes. With one microbatch ZeRO 2 sends the same
as ZeRO 1, so its reference is the time of ZeRO 1 without overlap.

ZeRO 3 is torch's `fully_shard`, which overlaps by streams of the device. A CPU has no streams;
the reference without overlap is then the computation plus the seconds of the link.

    python -m benchmarks.training.overlap
"""

import copy
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.entry import run_script
from benchmarks.machine import SecondsByName, medians_of
from benchmarks.planning.measured import dense_layout
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from benchmarks.results_store import ROOT
from benchmarks.training.two_ranks import (
    LOOPBACK,
    RANKS,
    create_link,
    measure_ranks,
    run_rank,
    time_alternating,
)
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.distributed import collectives
from components.distributed.data import DataParallel, shard_weights
from components.distributed.devices import StateDtypes
from components.distributed.mesh import Mesh, build_mesh
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.model.moe import expert_layers, take_rows

# The peer's time over ours; the hidden part of the exposed communication.
LEAST_RATIO, LEAST_HIDDEN = 0.95, 0.7
WARMUP_ROUNDS, ROUNDS = 1, 9
SEQUENCES, LENGTH, BUCKET_ELEMENTS = 8, 384, 2**17
# Recipes at full size with smaller models.
MODELS: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/data/overlap.yaml").read_text())
VOCAB_SIZE = 1_024
OURS = {f"zero {zero}": zero for zero in (1, 2, 3)}
# The peers of a ZeRO stage send the same bytes: DDP's all-reduce is a scatter and a gather.
PEERS = {"zero 1": ("DDP", "fully_shard"), "zero 2": ("DDP", "fully_shard")} | {
    "zero 3": ("fully_shard",)
}
LATE, UNSENT = "{}, no overlap", "{}, nothing sent"
FLOAT32 = StateDtypes(*[torch.float32] * 4)
StepFunction = Callable[[], object]


class PendingScatter(NamedTuple):
    """A running reduce-scatter that sends each row once."""

    output: Tensor
    received: Tensor
    work: dist.Work
    op: Any

    def wait(self) -> None:
        self.work.wait()
        torch.sum(self.received, 0, out=self.output.view(-1))
        if self.op == dist.ReduceOp.AVG:
            self.output.div_(len(self.received))


def scatter_once(
    output: Tensor,
    input: Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> PendingScatter | None:
    """Reduce-scatter with the bytes of NCCL; gloo's sends the bytes of an all-reduce."""
    received = torch.empty_like(input)
    work = dist.all_to_all_single(received, input, group=group, async_op=True)
    pending = PendingScatter(output, received.view(dist.get_world_size(group), -1), work, op)
    if async_op:
        return pending
    pending.wait()
    return None


def run_with(
    step: Callable[[], object], *, gather: Callable[..., Any], scatter: Callable[..., Any]
) -> None:
    """Run a step with other collectives; `fully_shard` looks them up at each call."""
    names = collectives.all_gather.__name__, collectives.reduce_scatter.__name__
    torch_names = dict(zip(names, (gather, scatter), strict=True))
    with (
        patch.multiple(collectives, all_gather=gather, reduce_scatter=scatter),
        patch.multiple(dist, **torch_names),
    ):
        step()


def run_unsent(step: Callable[[], object]) -> None:
    """Run a step with collectives that return at once and leave their outputs unchanged."""
    collective = Mock(return_value=Mock(wait=Mock()))
    run_with(step, gather=collective, scatter=collective)


def build_decoder(model: str) -> Decoder:
    """Build and initialize one of the models."""
    composed = compose_recipe(read_point(["scale=full", *MODELS[model]]))
    decoder = build_node(composed.model, "model")
    assert isinstance(decoder, Decoder)
    draw_weights(decoder, seed=0)
    return decoder


def compute_loss(model: nn.Module, decoder: Decoder) -> Tensor:
    """Return the mean loss of random tokens."""
    rows = torch.randint(VOCAB_SIZE, (SEQUENCES, LENGTH + 1))
    loss: Tensor = model(rows[:, :-1], targets=rows[:, 1:])
    take_rows(expert_layers(decoder))  # discards the balance statistics
    return loss


def make_our_step(decoder: Decoder, mesh: Mesh, *, zero: int, overlap: bool) -> StepFunction:
    """Return one step of our engine's data axis."""
    if zero == 3:
        shard_weights(decoder, mesh, dtypes=FLOAT32)
    parallel = DataParallel(
        [decoder],
        mesh,
        zero=zero,
        dtypes=FLOAT32,
        bucket_elements=BUCKET_ELEMENTS,
        overlap=overlap,
    )
    optimizer = torch.optim.AdamW([shard.parameter for shard in parallel.shards], fused=True)

    def step() -> None:
        # The gather of the previous update counts for this step, so each step is complete.
        parallel.all_gather_updated()
        parallel.start_step(1)
        torch.autograd.backward(compute_loss(decoder, decoder))
        parallel.reduce_gradients()
        optimizer.step()

    return step


def make_peer_step(decoder: Decoder, mesh: Mesh, *, peer: str) -> StepFunction:
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
        torch.autograd.backward(compute_loss(model, decoder))
        optimizer.step()

    return step


def make_steps(model: str, mesh: Mesh) -> dict[str, StepFunction]:
    """Return the steps of all variants, each with a copy of the model."""
    decoder = build_decoder(model)
    steps: dict[str, StepFunction] = {}
    for name, zero in OURS.items():
        make = partial(make_our_step, mesh=mesh, zero=zero)
        steps[name] = make(copy.deepcopy(decoder), overlap=True)
        if zero == 1:
            steps[LATE.format(name)] = make(copy.deepcopy(decoder), overlap=False)
        if zero != 2:  # with one microbatch ZeRO 2 computes the same as ZeRO 1
            steps[UNSENT.format(name)] = make(copy.deepcopy(decoder), overlap=True)
    for peer in ("DDP", "fully_shard"):
        steps[peer] = make_peer_step(copy.deepcopy(decoder), mesh, peer=peer)
    send = partial(run_with, gather=collectives.all_gather, scatter=scatter_once)
    return {
        name: partial(run_unsent if name.endswith(UNSENT.format("")) else send, step)
        for name, step in steps.items()
    }


def measure_models(models: Sequence[str], *, alone: bool) -> dict[str, SecondsByName]:
    """Time all variants of the models; with ``alone`` only the variant without sending."""
    mesh = build_mesh("cpu", dense_layout(data=RANKS, zero=1))
    torch.manual_seed(dist.get_rank())
    seconds, rounds = {}, 3 if alone else ROUNDS
    for model in models:
        steps = make_steps(model, mesh)
        if alone:
            steps = {name: steps[name] for name in (UNSENT.format("zero 1"),)}
        seconds[model] = time_alternating(steps, warmup=WARMUP_ROUNDS, rounds=rounds)
    return seconds


def count_sent_bytes(model: str) -> int:
    """Return the bytes that a rank sends in a step of ZeRO 1: gradients and weights."""
    numbers = sum(weight.numel() for weight in build_decoder(model).parameters())
    return 2 * numbers * 4 * (RANKS - 1) // RANKS


def choose_gigabits(model: str, alone: SecondsByName) -> float:
    """Return the link rate at which sending takes two thirds of a step: the backward pass."""
    (seconds,) = alone.values()
    return round(8 * count_sent_bytes(model) / (statistics.median(seconds) * 2 / 3) / 1e9, 3)


def row_of(model: str, gigabits: float, seconds: SecondsByName) -> dict[str, Any]:
    """Return the hidden part of each ZeRO stage, and its ratio to the faster peer."""
    medians = medians_of(seconds)
    exchange = 8 * count_sent_bytes(model) / gigabits / 1e9
    sides = {}
    for name, zero in OURS.items():
        unsent = medians[UNSENT.format("zero 3" if zero == 3 else "zero 1")]
        late = unsent + exchange * 3 / 2 if zero == 3 else medians[LATE.format("zero 1")]
        best = min(PEERS[name], key=medians.__getitem__)
        sides[name] = {
            "seconds": medians[name],
            "seconds_without_overlap": late,
            "seconds_unsent": unsent,
            "hidden": 1 - (medians[name] - unsent) / (late - unsent),
            "peer": best,
            "peer_seconds": medians[best],
            "ratio": paired_ratio(seconds[best], seconds[name]),
        }
    return {"model": model, "gigabits": gigabits, "exchange_seconds": exchange, "sides": sides}


def ratios_of(rows: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Return each stage's ratio to its faster peer, and its hidden part."""
    ratios = []
    for row in rows:
        for name, side in row["sides"].items():
            case = f"{row['model']}, {name.replace('zero', 'ZeRO')}"
            ratios += [
                Ratio(case, side["peer"], at_least=LEAST_RATIO, **to_interval(side["ratio"])),
                Ratio(f"{case}, hidden", "no overlap", side["hidden"], at_least=LEAST_HIDDEN),
            ]
    return ratios


def main(words: Sequence[str]) -> int:
    """Choose each model's link, measure over it, and save the result."""
    script = "benchmarks.training.overlap"
    if words:
        rank, folder, *models = words
        task = partial(measure_models, models or [*MODELS], alone=not models)
        run_rank(int(rank), Path(folder), task)
        return 0
    rows = []
    for model, alone in measure_ranks(script, LOOPBACK).items():
        gigabits = choose_gigabits(model, alone)
        with create_link(gigabits) as hosts:
            rows.append(row_of(model, gigabits, measure_ranks(script, hosts, model)[model]))
    shape = {"models": MODELS, "sequences": SEQUENCES, "length": LENGTH}
    shape |= {"ranks": RANKS, "rounds": ROUNDS}
    return save_benchmark("overlap", shape, {"rows": rows}, ratios_of(rows))


if __name__ == "__main__":
    run_script(main)
