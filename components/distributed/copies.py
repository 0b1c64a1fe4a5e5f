"""Copies: what several ranks hold alike is read from a disk by one of them, and broadcast.

As Mula's runs do (https://arxiv.org/abs/2604.00785): else each of thousands of ranks would read
all weights of its stage.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from components.distributed.mesh import Mesh
from components.distributed.weight_shards import WeightShard, local

# Of one stage's ranks, those whose neighbours lie farthest apart first.
_OF_A_STAGE = ("data_replicate", "data_shard", "expert", "context", "tensor")


def holders(shard: WeightShard, value: Tensor) -> DeviceMesh:
    """Find the ranks that hold ``value``, a weight or its optimizer's state, alike."""
    axes, divides = shard.param_mesh, False
    if isinstance(value, DTensor):
        (name,) = axes.shard.mesh_dim_names or ("",)
        names = value.device_mesh.mesh_dim_names or ()
        placement = dict(zip(names, value.placements, strict=True)).get(name, Replicate())
        divides = not isinstance(placement, Replicate)
    return axes.replicate if divides else axes.grad_sync


def readers(held: Sequence[tuple[Tensor, DeviceMesh]]) -> list[int]:
    """Choose for each value who of its holders reads it: who has the least to read yet.

    All holders choose alike. What lies on the host while ranks talk on devices, a counter, each
    reads by itself.
    """
    chosen, numbers = [], dict[int, list[int]]()
    for value, among in held:
        loads = numbers.setdefault(id(among), [0] * among.size())
        one = loads.index(min(loads))
        loads[one] += local(value).numel()
        chosen.append(one if _can_send(value, among) else among.get_local_rank())
    return chosen


def send(value: Tensor, among: DeviceMesh, source: int) -> None:
    """Overwrite this rank's part of ``value`` with what its reader has; all holders call."""
    if _can_send(value, among):
        _broadcast(local(value), among, source)


def send_over_stage(value: Tensor, mesh: Mesh) -> None:
    """Overwrite ``value`` on all ranks of a pipeline stage with that of `reads_for_stage`."""
    for number, axis in enumerate(_OF_A_STAGE):
        # Who has it yet sends it on along one axis more.
        if not any(mesh.place(later) for later in _OF_A_STAGE[number + 1 :]):
            _broadcast(value, mesh.axis(axis), 0)


def reads_for_stage(mesh: Mesh) -> bool:
    """Whether this rank is the one that reads for all ranks of its pipeline stage."""
    return not any(mesh.place(axis) for axis in _OF_A_STAGE)


def _can_send(value: Tensor, among: DeviceMesh) -> bool:
    return value.device.type == among.device_type


def _broadcast(value: Tensor, among: DeviceMesh, source: int) -> None:
    if among.size() == 1 or not value.numel():
        return
    sent = value.contiguous()
    dist.broadcast(sent, group=among.get_group(), group_src=source)
    if sent is not value:
        value.copy_(sent)
