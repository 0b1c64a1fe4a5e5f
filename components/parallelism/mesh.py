"""One device mesh for all ranks: six axes, in the order of ranks that a recipe asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# The data axis is two: replicas of the model, and the ranks that share one sharded copy of it.
AXES = ("pipeline", "data_replicate", "data_shard", "expert", "context", "tensor")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """How many ranks each axis has; their product is the number of ranks."""

    pipeline: int
    data_replicate: int
    data_shard: int
    expert: int
    context: int
    tensor: int

    @property
    def ranks(self) -> int:
        return prod(getattr(self, axis) for axis in AXES)


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The mesh with what is asked of it most; every collective names its axis."""

    root: DeviceMesh
    degrees: Degrees
    data_group: dist.ProcessGroup  # all ranks that differ in nothing but the samples they read

    def axis(self, name: str) -> DeviceMesh:
        """Return one axis as a mesh of its own."""
        return self.root[name]

    def place(self, name: str) -> int:
        """Number this rank along one axis."""
        return self.root.get_local_rank(name)

    @property
    def data_ranks(self) -> int:
        """Count the ranks that read different samples."""
        return self.degrees.data_replicate * self.degrees.data_shard

    @property
    def data_rank(self) -> int:
        """Number this rank among those that read different samples."""
        return self.place("data_replicate") * self.degrees.data_shard + self.place("data_shard")

    @property
    def model_ranks(self) -> int:
        """Count the ranks that hold one stage's model, in copies or in shards."""
        return self.degrees.ranks // self.degrees.pipeline


def build_mesh(device_type: str, degrees: Degrees, rank_order: Sequence[str]) -> Mesh:
    """Arrange the ranks of the default group.

    ``rank_order`` names ``pipeline, data, expert, context, tensor`` from the axis whose
    neighbours lie farthest apart to the one whose neighbours are neighbouring ranks.
    """
    order = [part for axis in rank_order for part in _parts(axis)]
    assert dist.get_world_size() == degrees.ranks, "the recipe's rules let only these through"
    ranks = torch.arange(degrees.ranks).view([getattr(degrees, axis) for axis in order])
    arranged = ranks.permute([order.index(axis) for axis in AXES])
    root = DeviceMesh(device_type, arranged.contiguous(), mesh_dim_names=AXES)
    data = root["data_replicate", "data_shard"]._flatten("data")
    return Mesh(root=root, degrees=degrees, data_group=data.get_group())


def _parts(axis: str) -> tuple[str, ...]:
    return ("data_replicate", "data_shard") if axis == "data" else (axis,)


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Add ``values`` up over all ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
