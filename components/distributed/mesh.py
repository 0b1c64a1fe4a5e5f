"""Device mesh of all ranks: six axes, with ranks in the order that a recipe sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from components.config.rank_groups import MESH_AXES, mesh_sizes
from components.config.schema.sections import Parallelism
from components.torch_internals.distributed import flatten_mesh


@dataclass(frozen=True, kw_only=True)
class ParamGroupMesh:
    """Meshes (of one axis) of the ranks that have one group of weights and different tokens.

    ``grad_sync`` has all these ranks: it sums their gradients. If the rows are sharded,
    ``shard`` ranks have different rows and ``replicate`` ranks the same rows.
    """

    grad_sync: DeviceMesh
    shard: DeviceMesh
    replicate: DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The device mesh, and the ranks that share dense weights and experts' weights."""

    root: DeviceMesh
    layout: Parallelism
    dense: ParamGroupMesh
    experts: ParamGroupMesh

    def get_axis(self, name: str) -> DeviceMesh:
        return self.axis_meshes[name]

    @cached_property
    def axis_meshes(self) -> dict[str, DeviceMesh]:
        # Torch takes 0.1 ms to create a submesh, and layers need them repeatedly.
        return {name: self.root[name] for name in MESH_AXES}

    def get_axis_rank(self, name: str) -> int:
        return self.root.get_local_rank(name)

    @property
    def data_ranks(self) -> int:
        return self.layout.num_replicas

    @property
    def data_rank(self) -> int:
        shard = self.get_axis_rank("data_replicate") * self.get_axis("data_shard").size()
        return (
            shard + self.get_axis_rank("data_shard")
        ) * self.layout.expert + self.get_axis_rank("expert")

    @property
    def model_ranks(self) -> int:
        """Number of ranks with copies or shards of one stage's model."""
        return self.layout.num_ranks // self.layout.pipeline


def build_mesh(device_type: str, layout: Parallelism) -> Mesh:
    """Arrange the ranks of the default group by the layout's ``rank_order``.

    With ``expert_aware`` the expert ranks shard the dense weights like data ranks (EPSO,
    https://arxiv.org/abs/2604.00785, section 3.2), else each has a copy. Context ranks shard
    them.
    """
    sizes = mesh_sizes(layout)
    assert dist.get_world_size() == layout.num_ranks, "the recipe's rules check this"
    ranks = torch.arange(layout.num_ranks).view(list(sizes.values()))
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
    """Flatten several axes into one; a new group is created only if none exists."""
    larger = [axis for axis in axes if root[axis].size() > 1] or axes[:1]
    if len(larger) == 1:
        return root[larger[0]]
    return flatten_mesh(root[tuple(larger)], "_".join(larger))


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Add ``values`` up over all ranks, in place."""
    if dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values
