"""Meshes of worlds that do not exist: a process plays one rank after another of any number."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from components.config.rank_groups import MESH_AXES
from components.distributed.mesh import Mesh, build_mesh
from components.dryrun.fake_world import fake_world
from tests.components.layouts import mesh_layout


class Seen(NamedTuple):
    """What one rank sees: its place and its group on each axis, and its data group."""

    places: dict[str, int]
    groups: dict[str, list[int]]
    data_rank: int
    data_ranks: int
    model_ranks: int
    data_group: list[int]


def look_around(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> Seen:
    layout = mesh_layout(sizes, rank_order=order)
    with fake_world(rank, layout.num_ranks):
        return _see(build_mesh("cpu", layout))


def _see(mesh: Mesh) -> Seen:
    return Seen(
        places={axis: mesh.get_axis_rank(axis) for axis in MESH_AXES},
        groups={
            axis: dist.get_process_group_ranks(ranks.get_group())
            for axis, ranks in mesh.axis_meshes.items()
        },
        data_rank=mesh.data_rank,
        data_ranks=mesh.data_ranks,
        model_ranks=mesh.model_ranks,
        data_group=dist.get_process_group_ranks(mesh.dense.grad_sync.get_group()),
    )
