"""Broadcast read: one rank reads a replicated value from disk and broadcasts it to the others.

As in Mula's runs (https://arxiv.org/abs/2604.00785).
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from components.distributed.mesh import Mesh
from components.distributed.weight_shards import WeightShard, get_local_part

# Axes of one stage's ranks; the axis with the most distant neighbors is first.
_OF_A_STAGE = ("data_replicate", "data_shard", "expert", "context", "tensor")


def find_holders(shard: WeightShard, value: Tensor) -> DeviceMesh:
    """Return the ranks with copies of ``value``, which is a weight or its optimizer state."""
    axes, divides = shard.param_mesh, False
    if isinstance(value, DTensor):
        (name,) = axes.shard.mesh_dim_names or ("",)
        names = value.device_mesh.mesh_dim_names or ()
        placement = dict(zip(names, value.placements, strict=True)).get(name, Replicate())
        divides = not isinstance(placement, Replicate)
    return axes.replicate if divides else axes.grad_sync


def assign_readers(held: Sequence[tuple[Tensor, DeviceMesh]]) -> list[int]:
    """Return each value's reader: the holder with the least to read so far, same on all.

    A value on the host that its group cannot send (a counter) is read by each rank itself.
    """
    chosen, numbers = [], dict[int, list[int]]()
    for value, among in held:
        loads = numbers.setdefault(id(among), [0] * among.size())
        reader = loads.index(min(loads))
        loads[reader] += get_local_part(value).numel()
        chosen.append(reader if _can_send(value, among) else among.get_local_rank())
    return chosen


def send_value(value: Tensor, among: DeviceMesh, source: int) -> None:
    """Overwrite this rank's part of ``value`` with its reader's; all holders call this."""
    if _can_send(value, among):
        _broadcast(get_local_part(value), among, source)


def send_over_stage(value: Tensor, mesh: Mesh) -> None:
    """Broadcast ``value`` from the rank of `reads_for_stage` to all ranks of its stage."""
    for number, axis in enumerate(_OF_A_STAGE):
        # The ranks that already have the value send it along one more axis.
        if not any(mesh.get_axis_rank(later) for later in _OF_A_STAGE[number + 1 :]):
            _broadcast(value, mesh.get_axis(axis), 0)


def reads_for_stage(mesh: Mesh) -> bool:
    """Return whether this rank reads for all ranks of its pipeline stage."""
    return not any(mesh.get_axis_rank(axis) for axis in _OF_A_STAGE)


def _can_send(value: Tensor, among: DeviceMesh) -> bool:
    return value.device.type == among.device_type


def _broadcast(value: Tensor, among: DeviceMesh, source: int) -> None:
    if among.size() == 1 or not value.numel():
        return
    sent = value.contiguous()
    dist.broadcast(sent, group=among.get_group(), group_src=source)
    if sent is not value:
        value.copy_(sent)
