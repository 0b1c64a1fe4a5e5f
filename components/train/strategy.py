"""The strategy that Lightning trains with: one process group, one device mesh, our own layout.

Today the mesh has its data axis; gradients are averaged over it once a step, after the last
microbatch. Optimizer state is kept whole on every rank.
"""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from typing_extensions import override


class MeshStrategy(ModelParallelStrategy):
    """Set up one mesh for all ranks; Lightning's own two-dimensional mesh is not made."""

    mesh: DeviceMesh

    @override
    def setup_environment(self) -> None:
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        if "RANK" in os.environ:
            self._setup_distributed()
        else:  # a world of one needs no port
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        self.mesh = init_device_mesh(
            self.root_device.type, (dist.get_world_size(),), mesh_dim_names=("data",)
        )

    @override
    def teardown(self) -> None:
        super().teardown()
        if dist.is_initialized():
            dist.destroy_process_group()


def average_gradients(
    parameters: Iterable[nn.Parameter], mesh: DeviceMesh, dtype: torch.dtype
) -> None:
    """Replace every gradient by its mean over the mesh's ranks, summed in ``dtype``."""
    if mesh.size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    sums = [gradient.to(dtype) for gradient in gradients]
    pending = [dist.all_reduce(total, group=mesh.get_group(), async_op=True) for total in sums]
    for work, total, gradient in zip(pending, sums, gradients, strict=True):
        assert work is not None
        work.wait()
        gradient.copy_(total).div_(mesh.size())


def round_gradients(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Keep running sums as exact as ``dtype``, as engines do that accumulate in it.

    The sums lie in float32 beside the float32 weights; only their values are rounded.
    """
    for parameter in parameters:
        if parameter.grad is not None and dtype != torch.float32:
            parameter.grad.copy_(parameter.grad.to(dtype))


def sum_over(values: Tensor, mesh: DeviceMesh) -> Tensor:
    """Add ``values`` up over the mesh's ranks, in place."""
    if mesh.size() > 1:
        dist.all_reduce(values, group=mesh.get_group())
    return values


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
