"""Checkpoint state of one rank by global names, and its staging in buffers of the host.

The buffers are our own: `torch.distributed.checkpoint.staging.DefaultStager` serves one save in
torch 2.11: it empties itself after the first, and a second ends in a KeyError.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from components.distributed.weight_shards import WeightShard


class HostBuffers:
    """Copies of tensors on the host, in memory that the next save uses again.

    Page-locked memory, to which copies run at the full speed of the bus, is CUDA's.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._free: dict[Any, list[Tensor]] = defaultdict(list)  # by shape and dtype
        self._used: list[Tensor] = []

    def stage(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors; they may change as soon as this returns."""
        copies = []
        for tensor in tensors:
            shape, dtype, pinned = tensor.shape, tensor.dtype, self._pinned
            if not (free := self._free[shape, dtype]):
                free.append(torch.empty(shape, dtype=dtype, pin_memory=pinned))
            copies.append(free.pop().copy_(tensor, non_blocking=pinned))
        self._used += copies
        if self._pinned:
            torch.cuda.synchronize()
        return copies

    def release(self) -> None:
        """Take back all buffers: what was staged has been written."""
        for buffer in self._used:
            self._free[buffer.shape, buffer.dtype].append(buffer)
        self._used.clear()


WEIGHTS = "model."  # before each weight's name

Read = Callable[[dict[str, Tensor]], None]


class State(Protocol):
    """What a checkpoint holds of one rank; every method is called by all ranks."""

    def tensors(self) -> dict[str, Tensor]:
        """Name every tensor: what several ranks have whole, any of them may give."""

    def fill(self, read: Read) -> None:
        """Call ``read`` with tensors to fill, all ranks with the same names each time."""


class ShardState:
    """Weights as DTensors or plain tensors, and the optimizer's state of their shards.

    ``model.NAME`` has the weight's own shape; ``optimizer.state.NAME.KEY`` is as long as its
    rows are (`rows_of`), whatever divides them. The optimizer's numbers come from the recipe.
    """

    def __init__(self, shards: Sequence[WeightShard], optimizer: torch.optim.Optimizer) -> None:
        self._shards = shards
        self._optimizer = optimizer

    def tensors(self) -> dict[str, Tensor]:
        if not any(self._optimizer.state.values()):  # in float16 the first steps may overflow
            self._make()
        tensors = {f"{WEIGHTS}{shard.name}": shard.weight.detach() for shard in self._shards}
        for shard in self._shards:
            for key, value in self._optimizer.state[shard.parameter].items():
                is_alike = value.shape == shard.parameter.shape and value.dim() > 0
                tensors[f"optimizer.state.{shard.name}.{key}"] = (
                    shard.whole(value) if is_alike else value
                )
        return tensors

    def fill(self, read: Read) -> None:
        self._make()
        read(self.tensors())  # what is filled is the memory of the weights and of the state

    def _make(self) -> None:
        """Let the optimizer make its state: a step without gradients and without a rate.

        Nothing is counted: all of the state is 0, as it is before a first step.
        """
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for shard in self._shards:
            shard.parameter.grad = torch.zeros_like(shard.parameter)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for shard in self._shards:
            shard.parameter.grad = None
            for value in self._optimizer.state[shard.parameter].values():
                value.zero_()
