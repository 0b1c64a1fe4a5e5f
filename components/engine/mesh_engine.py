"""Engines: the protocol that the training loop uses, and the engine on our mesh."""

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
from components.distributed.weight_shards import (
    WeightShard,
    clip_gradients,
    squared_norm,
    unscale_gradients,
)
from components.engine.gather_matrices import gather_matrices
from components.optim.groups import set_rate
from components.optim.loss_scale import LossScale
from components.optim.muon import Muon

NamedTensors = Iterator[tuple[str, Tensor]]
# This rank's share of the squared gradient norm (None if unknown before the update) -> the
# global norm, or None if the step must be skipped.
AcceptStep = Callable[[Tensor | None], Tensor | None]


class Engine(Protocol):
    """Engine protocol: average, clip and update; all ranks call every method."""

    optimizer: torch.optim.Optimizer
    shards: Sequence[WeightShard] = ()  # what this rank updates, unless the engine alone knows
    state: DealtState  # what checkpoints hold
    # Called in each step between averaging and clipping: only then `gradients` has something.
    on_gradients: Callable[[], None] | None = None

    @property
    def backward_scale(self) -> float:
        """Factor of losses before the backward pass."""

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, accept_step: AcceptStep
    ) -> Tensor | None:
        """Take one step and return the global norm before clipping, a float64 scalar.

        ``batch`` is this rank's (microbatches, sequences, length + 1). All ranks call
        ``accept_step`` once, before anything is updated; if it returns None, nothing changes.
        With a loss scale, a norm that is not finite leaves the weights unchanged.
        """

    def evaluate_rows(self, rows: Tensor) -> Tensor | None:
        """Return the loss of ``rows``, (sequences, length + 1); None without the last stage."""

    def wait_for_weights(self) -> None:
        """Wait until all weights are updated; the next forward pass may also do so."""

    def iterate_weights(self) -> NamedTensors:
        """Yield this rank's weights and trained buffers, whole and in their own dtype."""

    def iterate_gradients(self) -> NamedTensors:
        """Yield the gradients of these weights, stacks of matrices as one long matrix."""

    def nonfinite_gradients(self) -> list[str]:
        """Return the names of this rank's weights with non-finite gradients, if known."""
        return []

    def scale_state(self) -> Mapping[str, Any] | None:
        """Return the state of dynamic loss scaling, if there is any."""

    def load_scale_state(self, state: Mapping[str, Any] | None) -> None:
        """Load the state of dynamic loss scaling, if there is any."""


@dataclass(kw_only=True, eq=False)
class MeshEngine(Engine):
    """Engine on our own mesh: weight shards, torch's optimizers, any axis."""

    mesh: Mesh
    data_parallel: DataParallel
    microbatches: Microbatches
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale | None

    def __post_init__(self) -> None:
        self.shards = self.data_parallel.shards
        if isinstance(self.microbatches, Pipeline):
            self.microbatches.on_weight_gradient = self.data_parallel.collect_gradient
        if isinstance(self.optimizer, Muon):
            self.optimizer.use_full_matrices(gather_matrices(self.shards))
        self.state = ShardState(self.data_parallel, self.optimizer)

    @property
    def backward_scale(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.current_scale

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, accept_step: AcceptStep
    ) -> Tensor | None:
        shards = self.shards
        self.data_parallel.start_step(len(batch))
        self.microbatches.accumulate_gradients(batch, self.backward_scale / len(batch))
        self.data_parallel.reduce_gradients()
        sum_tied_gradients(shards, self.mesh)
        if self.loss_scale is not None:
            unscale_gradients(shards, self.backward_scale)
        if self.on_gradients is not None:
            self.on_gradients()
        norm = accept_step(squared_norm(shards))
        if norm is None:
            return None
        clip_gradients(shards, norm, norm_limit)
        set_rate(self.optimizer, lr)
        overflow = self.loss_scale is not None and not torch.isfinite(norm).item()
        if not overflow:
            self.optimizer.step()
            self.data_parallel.all_gather_updated()
        if self.loss_scale is not None:
            self.loss_scale.update_scale(overflow=overflow)
        return norm

    def evaluate_rows(self, rows: Tensor) -> Tensor | None:
        loss = self.microbatches.evaluate_rows(rows)
        self.data_parallel.free_gathered()
        return loss

    def wait_for_weights(self) -> None:
        self.data_parallel.wait_for_weights()

    def iterate_weights(self) -> NamedTensors:
        self.wait_for_weights()
        for shard in self.shards:
            weight = shard.weight.detach()
            yield shard.name, weight.full_tensor() if isinstance(weight, DTensor) else weight
        yield from self.data_parallel.buffers.items()

    def iterate_gradients(self) -> NamedTensors:
        for shard in self.shards:
            assert shard.parameter.grad is not None
            rows = shard.to_dtensor(shard.parameter.grad)
            yield shard.name, rows.full_tensor() if isinstance(rows, DTensor) else rows

    def nonfinite_gradients(self) -> list[str]:
        gradients = [(shard.name, shard.parameter.grad) for shard in self.shards]
        return [name for name, x in gradients if x is not None and not torch.isfinite(x).all()]

    def scale_state(self) -> Mapping[str, Any] | None:
        return None if self.loss_scale is None else self.loss_scale.state_dict()

    def load_scale_state(self, state: Mapping[str, Any] | None) -> None:
        if self.loss_scale is not None and state is not None:
            self.loss_scale.load_state_dict(state)
