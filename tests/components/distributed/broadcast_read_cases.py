"""Weights whose every number is another, on several axes: who holds the same ones?"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from components.distributed.broadcast_read import (
    assign_readers,
    find_holders,
    reads_for_stage,
    send_over_stage,
    send_value,
)
from components.distributed.mesh import Mesh, build_mesh
from components.distributed.weight_shards import get_local_part, make_shards
from tests.components.layouts import mesh_layout

Axes = dict[str, int]


def _mesh(axes: Axes) -> Mesh:
    return build_mesh("cpu", mesh_layout(axes))


def _weights(mesh: Mesh) -> dict[str, nn.Parameter]:
    """A dense weight, one of tensor ranks and one of experts, 5 x 8 x 3 numbers each."""
    numbers = torch.arange(120.0).view(40, 3)
    split = {"dense": numbers}
    for name, axis in (("tensor", "tensor"), ("experts", "expert")):
        if mesh.get_axis(axis).size() > 1:
            split[name] = distribute_tensor(
                numbers, mesh.get_axis(axis), [Shard(0)], src_data_rank=None
            )
    return {name: nn.Parameter(value) for name, value in split.items()}


def _values(mesh: Mesh, splits: bool) -> list[tuple[str, Tensor, DeviceMesh]]:
    """Name weights and what an optimizer keeps of them, each with those who hold it alike."""
    stage = nn.ParameterDict(_weights(mesh))
    (shards,) = make_shards([stage], mesh, split=splits, weights=torch.float32)
    named = [(f"{one.name} weight", one, one.weight.detach()) for one in shards]
    named += [
        (f"{one.name} state", one, one.to_dtensor(one.parameter.detach().clone()))
        for one in shards
    ]
    return [(name, value, find_holders(shard, value)) for name, shard, value in named]


def hold_alike(axes: Axes, splits: bool) -> list[str]:
    """Name the values that do not get their own numbers back from those who hold them alike."""
    values = _values(_mesh(axes), splits)
    expected = {name: get_local_part(value).clone() for name, value, _ in values}
    chosen = assign_readers([(value, among) for _, value, among in values])
    for (_, value, among), one in zip(values, chosen, strict=True):
        if among.get_local_rank() != one:
            get_local_part(value).fill_(-1.0)
    for (_, value, among), one in zip(values, chosen, strict=True):
        send_value(value, among, one)
    return [
        name
        for name, value, _ in values
        if not torch.equal(get_local_part(value), expected[name])
    ]


def count_readers(axes: Axes, splits: bool) -> dict[str, int]:
    """Count how many numbers of each value all ranks together would read."""
    values = _values(_mesh(axes), splits)
    chosen = assign_readers([(value, among) for _, value, among in values])
    mine = {
        name: get_local_part(value).numel()
        for (name, value, among), one in zip(values, chosen, strict=True)
        if one == among.get_local_rank()
    }
    everyones: list[dict[str, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    return {name: sum(one.get(name, 0) for one in everyones) for name, _, _ in values}


def spread(axes: Axes) -> tuple[bool, float]:
    """Send the number of each stage over the stage; return who had it, and what came."""
    mesh = _mesh(axes)
    had = reads_for_stage(mesh)
    value = torch.full((3,), float(10 + mesh.get_axis_rank("pipeline")) if had else -1.0)
    send_over_stage(value, mesh)
    return had, value.max().item() if value.min() == value.max() else -2.0
