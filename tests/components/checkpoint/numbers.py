"""A state of few numbers, that all follow from one, so that a mixture would be noticed."""

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from components.checkpoint.saving import Read

NARROW, WIDE = 5, 3  # odd: bfloat16 before float64 would leave it where no one can map it


class Counted:
    """Tensors of several dtypes whose every number is ``value``.

    ``model.split`` is divided over the ranks, ``model.shared`` all ranks have, and each has an
    ``optimizer.N`` of its own; ``length`` says how large they are.
    """

    def __init__(self, value: int, length: int = 8) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks,))
        rows = torch.full((length, 6), float(value))
        self._tensors: dict[str, Tensor] = {
            "model.split": DTensor.from_local(rows, mesh, [Shard(0)], run_check=False),
            "model.shared": torch.full((length,), float(value)),
            f"optimizer.{rank}": torch.full((NARROW,), value, dtype=torch.bfloat16),
            f"optimizer.wide.{rank}": torch.full((WIDE,), value, dtype=torch.float64),
            f"optimizer.count.{rank}": torch.tensor(value),
        }

    def collect_tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def select_own_tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        read(self._tensors)

    def become(self, value: int) -> None:
        for tensor in self._tensors.values():
            _local(tensor).fill_(value)

    def values(self) -> set[float]:
        """Return all the numbers that there are: one, if all is well."""
        local = map(_local, self._tensors.values())
        return {float(one) for tensor in local for one in tensor.reshape(-1).unique()}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
