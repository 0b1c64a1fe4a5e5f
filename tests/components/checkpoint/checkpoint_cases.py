"""Ranks that save what they trained, and load what others saved."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from components.checkpoint.layout import PieceReader
from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import ShardState
from components.distributed.experts import balance_experts
from tests.components.checkpoint.saving_cases import load_checkpoint, save_checkpoint
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    gather,
)
from tests.components.distributed.tensor_cases import Parts, randomized

State = dict[str, Tensor]


class Rank(NamedTuple):
    """One rank's part of a layout, with its optimizer."""

    sharded: ParallelModel
    optimizer: torch.optim.Optimizer

    @property
    def state(self) -> ShardState:
        return ShardState(self.sharded.parallel, self.optimizer)


def start(parts: Parts, layout: Layout, *, seed: int) -> Rank:
    sharded = ParallelModel(randomized(parts, seed=seed), layout)
    parameters = [shard.parameter for shard in sharded.shards]
    return Rank(sharded, torch.optim.AdamW(parameters, lr=0.01, fused=True))


def train(rank: Rank, steps: range) -> None:
    for step in steps:
        rank.sharded.backward(batch_of(step, rank.sharded.mesh.data_rank))
        rank.optimizer.step()
        rank.sharded.parallel.all_gather_updated()
        balance_experts(rank.sharded.stages, rank.sharded.mesh.dense.grad_sync)


def train_alone(parts: Parts, data_ranks: int, steps: int) -> State:
    """Train on all data ranks' samples in one process, past everything that is tested here."""
    whole = Whole(randomized(parts, seed=0))
    optimizer = torch.optim.AdamW(whole.decoder.parameters(), lr=0.01, fused=True)
    for step in range(steps):
        whole.backward([batch_of(step, rank) for rank in range(data_ranks)])
        optimizer.step()
    return whole.weights()


def state_of(rank: Rank) -> State:
    """Gather weights, moments and counters; the ranks call this together."""
    state = {name: one.clone() for name, one in rank.sharded.parallel.buffers.items()}
    rank.sharded.parallel.wait_for_weights()
    for shard in rank.sharded.shards:
        state[shard.name] = gather(shard.weight.detach())
        for key, value in rank.optimizer.state[shard.parameter].items():
            state[f"{shard.name} {key}"] = (
                value if key == "step" else gather(shard.to_dtensor(value))
            )
    return state


def save(parts: Parts, layout: Layout, folder: Path, steps: int, files: int = 1_024) -> State:
    """Train, save, and return what should be in the checkpoint as far as this rank has it."""
    rank = start(parts, layout, seed=0)
    train(rank, range(steps))
    save_checkpoint(folder, rank.state, RunProgress(steps, 10 * steps), files=files)
    return state_of(rank)


def load(parts: Parts, layout: Layout, checkpoint: Path) -> State:
    rank = start(parts, layout, seed=1)
    load_checkpoint(checkpoint, rank.state)
    return state_of(rank)


def load_counting(parts: Parts, layout: Layout, checkpoint: Path) -> tuple[State, Counter[str]]:
    """Load as above, and count of each tensor the numbers that this rank read from files."""
    counted: Counter[str] = Counter()
    read_data = PieceReader.read_data

    def read(self: PieceReader, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            counted[item.storage_index.fqn] += prod(item.lengths)
        return read_data(self, plan, planner)

    with patch.object(PieceReader, "read_data", read):
        return load(parts, layout, checkpoint), counted


def go_on(parts: Parts, layout: Layout, checkpoint: Path, steps: range) -> State:
    rank = start(parts, layout, seed=1)
    load_checkpoint(checkpoint, rank.state)
    train(rank, steps)
    return state_of(rank)
