import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard

from components.torch_internals.distributed import (
    StridedShard,
    all_reduced,
    concatenate_meshes,
    flatten_mesh,
    gathered,
    local_tensor,
    place_part,
    placement_of,
    scattered,
)
from components.torch_internals.operators import WAIT, FakeStore
from tests.components.torch_internals.seen import overloads_of, packets_of


@pytest.fixture
def root() -> Iterator[DeviceMesh]:
    """Give rank 5 of 2 x 2 x 2 ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    ranks = torch.arange(8).view(2, 2, 2)
    yield DeviceMesh("cpu", ranks, mesh_dim_names=("first", "second", "third"))
    dist.destroy_process_group()


def test_two_flattened_axes_have_one_group(root: DeviceMesh) -> None:
    flat = flatten_mesh(root["first", "third"], "first_third")
    assert flat.mesh.tolist() == [0, 1, 4, 5]
    assert dist.get_process_group_ranks(flat.get_group()) == [0, 1, 4, 5]
    assert flat.get_local_rank() == 3
    assert flat.mesh_dim_names == ("first_third",)


def test_concatenated_meshes_have_the_axes_of_both(root: DeviceMesh) -> None:
    flat = flatten_mesh(root["first", "second"], "first_second")
    joined = concatenate_meshes([flat, root["third"]])
    assert joined.mesh_dim_names == ("first_second", "third")
    assert joined.mesh.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert list(joined.get_coordinate() or ()) == [2, 1]


def test_a_strided_shard_splits_an_already_split_axis(root: DeviceMesh) -> None:
    mesh = root["first", "third"]  # this rank is (1, 1): the second quarter of the second half
    rows = torch.arange(8.0)[:, None]
    half = rows[4:][2:]
    whole = DTensor.from_local(half, mesh, [StridedShard(0, split_factor=2), Shard(0)])
    assert whole.shape == rows.shape
    assert not isinstance(whole.placements[0], Shard)
    placement = whole.placements[0]
    assert isinstance(placement, StridedShard)
    assert not placement.is_shard()
    assert (placement.dim, placement.split_factor) == (0, 2)


def test_the_local_part_is_read_without_an_operator(root: DeviceMesh) -> None:
    rows = torch.ones(2, 3)
    whole = DTensor.from_local(rows, root["first"], [Shard(0)])
    found = []
    assert overloads_of(lambda: found.append(local_tensor(whole))) == []
    assert found[0].data_ptr() == rows.data_ptr()
    assert local_tensor(rows) is rows


def test_a_local_part_gets_a_placement_without_an_operator(root: DeviceMesh) -> None:
    one = DTensor.from_local(torch.ones(2, 3), root["first"], [Shard(0)])
    found, part = [], torch.zeros(2, 3)
    assert overloads_of(lambda: found.append(place_part(part, placement_of(one)))) == []
    assert (found[0].shape, found[0].placements) == (one.shape, one.placements)
    assert local_tensor(found[0]).data_ptr() == part.data_ptr()


def test_functional_collectives_give_new_tensors(root: DeviceMesh) -> None:
    group, rows = root["first"].get_group(), torch.ones(4, 3)
    parts = gathered(rows, 0, group), scattered(rows, "sum", 0, group)
    found = *parts, all_reduced(rows, "sum", group)
    assert [len(one + 0) for one in found] == [8, 2, 4]  # the addition waits for each


def test_a_functional_collective_ends_in_a_wait(root: DeviceMesh) -> None:
    parts = DTensor.from_local(torch.ones(2), root["first"], [Partial()])
    assert WAIT in packets_of(parts.full_tensor)


RECORDED = """
import torch, torch.distributed as dist
from components.torch_internals.distributed import flight_record
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print(flight_record(of_nccl=False).decode())
dist.destroy_process_group()
"""


@pytest.mark.long
def test_the_flight_recorder_has_size_and_state_of_a_collective() -> None:
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "10"}
    ran = subprocess.run(
        [sys.executable, "-c", RECORDED], env=env, capture_output=True, text=True, check=True
    )
    (entry,) = json.loads(ran.stdout.splitlines()[-1])["entries"]  # gloo writes first
    assert entry["profiling_name"] == "gloo:all_reduce"
    assert entry["input_sizes"] == [[3]]
    assert "retired" in entry
