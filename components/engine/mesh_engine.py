"""Engines: what the loop asks of one, and the one on our mesh."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from components.checkpoint.saving import DealtState, ShardState
from components.distributed.data import DataParallel
from components.distributed.mesh import Mesh
from components.distributed.pipeline import Microbatches, Pipeline, sum_tied_gradients
from components.distributed.weight_shards import WeightShard, clip, squared_norm, unscale
from components.engine.whole_matrices import whole_matrices
from components.optim.groups import set_rate
from components.optim.loss_scale import LossScale
from components.optim.muon import Muon

NamedTensors = Iterator[tuple[str, Tensor]]
# Takes this rank's share of the squared norm, where known before the update, and returns the
# global norm of the gradients, or None where the step must not be taken.
Judge = Callable[[Tensor | None], Tensor | None]


class Engine(Protocol):
    """Average, clip and update over all ranks; every method is called by all of them."""

    optimizer: torch.optim.Optimizer
    shards: Sequence[WeightShard] = ()  # what this rank updates, unless the engine alone knows
    state: DealtState  # what checkpoints hold
    # Called in each step between averaging and clipping: only then `gradients` has something.
    on_gradients: Callable[[], None] | None = None

    @property
    def scale(self) -> float:
        """What losses are multiplied by before the backward pass."""

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, judge: Judge
    ) -> Tensor | None:
        """Take one step and return the global norm before clipping, a float64 scalar.

        ``batch`` is this rank's (microbatches, sequences, length + 1). All ranks ask ``judge``
        once, before anything is updated; where it gives None, all stays as it was. A norm that
        is not finite leaves the weights as they are where losses are scaled.
        """

    def evaluate(self, rows: Tensor) -> Tensor | None:
        """Return the loss of ``rows``, (sequences, length + 1), where the last stage is."""

    def settle(self) -> None:
        """Wait until all weights have their last update, which the next forward pass may do."""

    def weights(self) -> NamedTensors:
        """Give every weight that this rank holds a part of, whole, in its own precision.

        Buffers that training moves are among them.
        """

    def gradients(self) -> NamedTensors:
        """Give the gradients of the same, stacks of matrices as one long matrix."""

    def unsound(self) -> list[str]:
        """Name the weights of this rank whose gradients are not finite, where it can tell."""
        return []

    def scale_state(self) -> Mapping[str, Any] | None:
        """Give the state of dynamic loss scaling, if there is any."""

    def load_scale_state(self, state: Mapping[str, Any] | None) -> None:
        """Take such a state, if there is any."""


@dataclass(kw_only=True, eq=False)
class MeshEngine(Engine):
    """Train on our own mesh: weight shards, torch's optimizers, any axis."""

    mesh: Mesh
    data_parallel: DataParallel
    microbatches: Microbatches
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale | None

    def __post_init__(self) -> None:
        self.shards = self.data_parallel.shards
        if isinstance(self.microbatches, Pipeline):
            self.microbatches.on_weight_gradient = self.data_parallel.take
        if isinstance(self.optimizer, Muon):
            self.optimizer.see_whole(whole_matrices(self.shards))
        self.state = ShardState(self.data_parallel, self.optimizer)

    @property
    def scale(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.scale

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, judge: Judge
    ) -> Tensor | None:
        shards = self.shards
        self.data_parallel.begin(len(batch))
        self.microbatches.run(batch, self.scale / len(batch))
        self.data_parallel.reduce()
        sum_tied_gradients(shards, self.mesh)
        if self.loss_scale is not None:
            unscale(shards, self.scale)
        if self.on_gradients is not None:
            self.on_gradients()
        norm = judge(squared_norm(shards))
        if norm is None:
            return None
        clip(shards, norm, norm_limit)
        set_rate(self.optimizer, lr)
        overflow = self.loss_scale is not None and not torch.isfinite(norm).item()
        if not overflow:
            self.optimizer.step()
            self.data_parallel.spread()
        if self.loss_scale is not None:
            self.loss_scale.update(overflow=overflow)
        return norm

    def evaluate(self, rows: Tensor) -> Tensor | None:
        loss = self.microbatches.evaluate(rows)
        self.data_parallel.reshard()
        return loss

    def settle(self) -> None:
        self.data_parallel.settle()

    def weights(self) -> NamedTensors:
        self.settle()
        for shard in self.shards:
            weight = shard.weight.detach()
            yield shard.name, weight.full_tensor() if isinstance(weight, DTensor) else weight
        yield from self.data_parallel.buffers.items()

    def gradients(self) -> NamedTensors:
        for shard in self.shards:
            assert shard.parameter.grad is not None
            rows = shard.whole(shard.parameter.grad)
            yield shard.name, rows.full_tensor() if isinstance(rows, DTensor) else rows

    def unsound(self) -> list[str]:
        found = [(shard.name, shard.parameter.grad) for shard in self.shards]
        return [name for name, x in found if x is not None and not torch.isfinite(x).all()]

    def scale_state(self) -> Mapping[str, Any] | None:
        return None if self.loss_scale is None else self.loss_scale.state_dict()

    def load_scale_state(self, state: Mapping[str, Any] | None) -> None:
        if self.loss_scale is not None and state is not None:
            self.loss_scale.load_state_dict(state)
