"""One rank reads each tensor and sends it to all ranks with the same part."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from components.distributed import broadcast_read
from components.distributed.mesh import Mesh, build_mesh
from components.distributed.weight_shards import get_local_part, make_shards
from tests.components.layouts import mesh_layout

Axes = dict[str, int]


def _mesh(axes: Axes) -> Mesh:
    return build_mesh("cpu", mesh_layout(axes))


def _weights(mesh: Mesh) -> dict[str, nn.Parameter]:
    """Make a dense weight and weights split by tensor and expert ranks, 120 numbers each."""
    numbers = torch.arange(120.0).view(40, 3)
    split = {"dense": numbers}
    for name, axis in (("tensor", "tensor"), ("experts", "expert")):
        if mesh.get_axis(axis).size() > 1:
            split[name] = distribute_tensor(
                numbers, mesh.get_axis(axis), [Shard(0)], src_data_rank=None
            )
    return {name: nn.Parameter(value) for name, value in split.items()}


def _values(mesh: Mesh, splits: bool) -> list[tuple[str, Tensor, DeviceMesh]]:
    """List weights and optimizer states with the group of ranks that hold the same part."""
    stage = nn.ParameterDict(_weights(mesh))
    (shards,) = make_shards([stage], mesh, split=splits, weights=torch.float32)
    named = [(f"{shard.name} weight", shard, shard.weight.detach()) for shard in shards]
    named += [
        (f"{shard.name} state", shard, shard.to_dtensor(shard.parameter.detach().clone()))
        for shard in shards
    ]
    return [
        (name, value, broadcast_read.find_holders(shard, value)) for name, shard, value in named
    ]


def read_once(axes: Axes) -> list[tuple[list[str], dict[str, int]]]:
    """Read unsplit and split values on the assigned ranks.

    Returns the values that did not get their own numbers back from those who hold them alike,
    and how many numbers of each value all ranks together read.
    """
    mesh = _mesh(axes)
    return [_read(_values(mesh, splits)) for splits in (False, True)]


def _read(values: list[tuple[str, Tensor, DeviceMesh]]) -> tuple[list[str], dict[str, int]]:
    expected = {name: get_local_part(value).clone() for name, value, _ in values}
    chosen = broadcast_read.assign_readers([(value, among) for _, value, among in values])
    mine = dict.fromkeys(expected, 0)
    for (name, value, among), reader in zip(values, chosen, strict=True):
        if among.get_local_rank() == reader:
            mine[name] = expected[name].numel()
        else:
            get_local_part(value).fill_(-1.0)
    for (_, value, among), reader in zip(values, chosen, strict=True):
        broadcast_read.send_value(value, among, reader)
    everyones: list[dict[str, int]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    wrong = [
        name for name, value, _ in values if not get_local_part(value).equal(expected[name])
    ]
    return wrong, {name: sum(counts[name] for counts in everyones) for name in mine}


def spread(axes: Axes) -> tuple[bool, float]:
    """Send a number to a stage; return whether this rank read it, and the result."""
    mesh = _mesh(axes)
    had = broadcast_read.reads_for_stage(mesh)
    value = torch.full((3,), float(10 + mesh.get_axis_rank("pipeline")) if had else -1.0)
    broadcast_read.send_over_stage(value, mesh)
    return had, value.max().item() if value.min() == value.max() else -2.0


@pytest.mark.parametrize(
    "axes",
    [
        {"data_shard": 4},
        {"data_replicate": 2, "data_shard": 2},
        {"data_shard": 2, "context": 2},
        {"data_replicate": 2, "context": 2},
        {"data_shard": 2, "tensor": 2},
        {"context": 2, "tensor": 2},
        {"expert": 2, "data_shard": 2},
        {"expert": 2, "context": 2},
        {"pipeline": 2, "data_shard": 2},
    ],
    ids=lambda axes: " ".join(axes),
)
def test_every_number_is_read_once_and_reaches_the_ranks_that_hold_it(four_ranks, axes):
    """A number is read once per stage and per tensor rank with its own part."""
    for whole_and_split in four_ranks(read_once, axes):
        for wrong, counts in whole_and_split:
            assert wrong == []
            for name, numbers in counts.items():
                alike = axes.get("pipeline", 1)  # both stages hold the same weights
                if not name.startswith("tensor"):
                    alike *= axes.get("tensor", 1)
                assert numbers == 120 * alike, name


@pytest.mark.parametrize(
    ("axes", "readers"),
    [
        ({"data_shard": 4}, [0]),
        ({"data_replicate": 2, "tensor": 2}, [0]),
        ({"expert": 2, "context": 2}, [0]),
        ({"pipeline": 2, "data_shard": 2}, [0, 2]),
        ({"pipeline": 4}, [0, 1, 2, 3]),
    ],
)
def test_one_rank_of_a_stage_sends_its_values_to_the_stage(four_ranks, axes, readers):
    found = four_ranks(spread, axes)
    assert [rank for rank, (had, _) in enumerate(found) if had] == readers
    per_stage = 4 // axes.get("pipeline", 1)
    assert [value for _, value in found] == [10.0 + rank // per_stage for rank in range(4)]
