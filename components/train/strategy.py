"""The strategy that Lightning trains with: one process group, one mesh, our own layout."""

import os

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from typing_extensions import override

from components.parallelism.mesh import Degrees, Mesh, build_mesh
from components.spec.sections import Parallelism


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
            self._setup_distributed()
        else:  # a world of one needs no port
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        self.mesh = build_mesh(
            self.root_device.type,
            degrees_of(self._parallelism),
            self._parallelism.rank_order,
            expert_aware=self._parallelism.expert_aware,
        )

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


def device_type(wanted: str) -> str:
    """Choose the device that ``auto`` stands for here."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def compute_dtype(compute: str, device: torch.device) -> torch.dtype:
    """Choose the dtype that ``auto`` stands for on ``device``."""
    if compute == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, compute)
    assert isinstance(dtype, torch.dtype)
    return dtype


def rank_here() -> int:
    """Number of this process among the ranks, also before they are connected."""
    return int(os.environ.get("RANK", "0"))
