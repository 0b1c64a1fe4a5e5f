"""The strategy that Lightning trains with: one process group, one mesh, our own layout."""

import os
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.constants import default_pg_timeout
from typing_extensions import override

from components.parallelism.mesh import Degrees, Mesh, build_mesh
from components.spec.sections import Parallelism
from components.train.devices import group_backend, lone_backend


class MeshStrategy(ModelParallelStrategy):
    """Set up one mesh for all ranks; Lightning's own two-dimensional mesh is not made.

    The module pours the axes over its model and runs microbatches; Lightning keeps the loop.
    """

    mesh: Mesh

    def __init__(self, parallelism: Parallelism) -> None:
        super().__init__()
        self._parallelism = parallelism

    @override
    def setup_environment(self) -> None:
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        if "RANK" in os.environ:
            self._connect()
        else:  # a world of one needs no port
            backend = lone_backend(self.root_device.type)
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        self.mesh = build_mesh(
            self.root_device.type,
            degrees_of(self._parallelism),
            self._parallelism.rank_order,
            expert_aware=self._parallelism.expert_aware,
        )

    def _connect(self) -> None:
        """Join the ranks that torchrun started, unless whoever called us has done so.

        Bound to a device, a group makes the mesh's groups by splitting itself, which saves NCCL
        time. Not so xccl, which cannot: https://github.com/pytorch/pytorch/issues/186548.

        Raises:
            RecipeError: this torch has nothing that joins such devices.
        """
        if dist.is_initialized():
            return
        dist.init_process_group(
            group_backend(self.root_device.type),
            timeout=default_pg_timeout,
            device_id=self.root_device if self.root_device.type == "cuda" else None,
        )

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return ``tensor`` itself in a world of one, whatever joins it."""
        return tensor if self.world_size == 1 else super().reduce(tensor, group, reduce_op)

    @override
    def teardown(self) -> None:
        super().teardown()
        if dist.is_initialized():
            dist.destroy_process_group()


def degrees_of(parallelism: Parallelism) -> Degrees:
    """Read the mesh's axes from the recipe; its data axis becomes two.

    The recipe counts expert ranks among those that share a copy, the mesh has them apart.
    """
    shard = max(1, parallelism.data_shard // parallelism.expert)
    return Degrees(
        pipeline=parallelism.pipeline,
        data_replicate=parallelism.data // shard,
        data_shard=shard,
        expert=parallelism.expert,
        context=parallelism.context,
        tensor=parallelism.tensor,
    )


def rank_here() -> int:
    """Number of this process among the ranks, also before they are connected."""
    return int(os.environ.get("RANK", "0"))
