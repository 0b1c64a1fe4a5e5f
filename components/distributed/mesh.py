"""One device mesh for all ranks: six axes, with ranks in the order that a recipe sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from components.config.rank_groups import MESH_AXES, mesh_sizes
from components.config.schema.sections import Parallelism
from components.torch_internals.distributed import flattened


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
    layout: Parallelism
    dense: ParamGroupMesh
    experts: ParamGroupMesh

    def axis(self, name: str) -> DeviceMesh:
        return self.axes[name]

    @cached_property
    def axes(self) -> dict[str, DeviceMesh]:
        # Torch takes a tenth of a millisecond to make one, and layers need them repeatedly.
        return {name: self.root[name] for name in MESH_AXES}

    def place(self, name: str) -> int:
        return self.root.get_local_rank(name)

    @property
    def data_ranks(self) -> int:
        return self.layout.replicas

    @property
    def data_rank(self) -> int:
        shard = self.place("data_replicate") * self.axis("data_shard").size()
        return (shard + self.place("data_shard")) * self.layout.expert + self.place("expert")

    @property
    def model_ranks(self) -> int:
        """Count the ranks that hold one stage's model, in copies or in shards."""
        return self.layout.ranks // self.layout.pipeline


def build_mesh(device_type: str, layout: Parallelism) -> Mesh:
    """Arrange the ranks of the default group by the layout's ``rank_order``.

    With ``expert_aware`` the expert ranks, which all hold the dense weights, divide them as
    data ranks do (EPSO, https://arxiv.org/abs/2604.00785, section 3.2); without, each expert
    rank repeats the state of the others. Context ranks always divide.
    """
    sizes = mesh_sizes(layout)
    assert dist.get_world_size() == layout.ranks, "the recipe's rules check this"
    ranks = torch.arange(layout.ranks).view(list(sizes.values()))
    arranged = ranks.permute([list(sizes).index(axis) for axis in MESH_AXES])
    root = DeviceMesh(device_type, arranged.contiguous(), mesh_dim_names=MESH_AXES)
    shard, replicate = ["data_shard"], ["data_replicate"]
    (shard if layout.expert_aware else replicate).append("expert")
    return Mesh(
        root=root,
        layout=layout,
        dense=_param_group_mesh(root, [*shard, "context"], replicate),
        experts=_param_group_mesh(root, ["data_shard", "context"], ["data_replicate"]),
    )


def _param_group_mesh(
    root: DeviceMesh, shard: Sequence[str], replicate: Sequence[str]
) -> ParamGroupMesh:
    both = [axis for axis in MESH_AXES if axis in {*shard, *replicate}]
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
