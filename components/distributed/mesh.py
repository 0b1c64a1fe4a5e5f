"""One device mesh for all ranks: six axes, in the order of ranks that a recipe asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from components.torch_internals.distributed import flattened

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
class ParamGroupMesh:
    """The ranks that hold one group of weights and differ in the tokens they see.

    Each of the three is a mesh of one axis. ``grad_sync`` has all of them: their gradients add
    up. Where something is sharded, ``shard`` divide the rows, ``replicate`` have the same ones.
    """

    grad_sync: DeviceMesh
    shard: DeviceMesh
    replicate: DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The device mesh, and the ranks that share the ``dense`` weights and those of experts."""

    root: DeviceMesh
    degrees: Degrees
    dense: ParamGroupMesh
    experts: ParamGroupMesh

    def axis(self, name: str) -> DeviceMesh:
        return self._axes[name]

    @cached_property
    def _axes(self) -> dict[str, DeviceMesh]:
        # Torch takes a tenth of a millisecond to make one, and layers ask again.
        return {name: self.root[name] for name in AXES}

    def place(self, name: str) -> int:
        return self.root.get_local_rank(name)

    @property
    def data_ranks(self) -> int:
        degrees = self.degrees
        return degrees.data_replicate * degrees.data_shard * degrees.expert

    @property
    def data_rank(self) -> int:
        degrees = self.degrees
        shard = self.place("data_replicate") * degrees.data_shard + self.place("data_shard")
        return shard * degrees.expert + self.place("expert")

    @property
    def model_ranks(self) -> int:
        """Count the ranks that hold one stage's model, in copies or in shards."""
        return self.degrees.ranks // self.degrees.pipeline


def build_mesh(
    device_type: str, degrees: Degrees, rank_order: Sequence[str], *, expert_aware: bool
) -> Mesh:
    """Arrange the ranks of the default group.

    ``rank_order`` names ``pipeline, data, expert, context, tensor`` from the axis whose
    neighbours lie farthest apart to the one whose neighbours are neighbouring ranks.
    With ``expert_aware`` the expert ranks, which all hold the dense weights, divide them as
    data ranks do (EPSO, https://arxiv.org/abs/2604.00785, section 3.2); without, each expert
    rank repeats what the others keep of them. Context ranks always divide.
    """
    parts = {"data": AXES[1:3]}
    order = [axis for name in rank_order for axis in parts.get(name, (name,))]
    assert dist.get_world_size() == degrees.ranks, "the recipe's rules let only these through"
    ranks = torch.arange(degrees.ranks).view([getattr(degrees, axis) for axis in order])
    arranged = ranks.permute([order.index(axis) for axis in AXES])
    root = DeviceMesh(device_type, arranged.contiguous(), mesh_dim_names=AXES)
    shard, replicate = ["data_shard"], ["data_replicate"]
    (shard if expert_aware else replicate).append("expert")
    return Mesh(
        root=root,
        degrees=degrees,
        dense=_param_group_mesh(root, [*shard, "context"], replicate),
        experts=_param_group_mesh(root, ["data_shard", "context"], ["data_replicate"]),
    )


def _param_group_mesh(
    root: DeviceMesh, shard: Sequence[str], replicate: Sequence[str]
) -> ParamGroupMesh:
    both = [axis for axis in AXES if axis in {*shard, *replicate}]
    return ParamGroupMesh(
        grad_sync=_flat(root, both), shard=_flat(root, shard), replicate=_flat(root, replicate)
    )


def _flat(root: DeviceMesh, axes: Sequence[str]) -> DeviceMesh:
    """Make one axis of several; a group is made only where there is none yet."""
    larger = [axis for axis in axes if root[axis].size() > 1] or axes[:1]
    if len(larger) == 1:
        return root[larger[0]]
    return flattened(root[tuple(larger)], "_".join(larger))


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Add ``values`` up over all ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
