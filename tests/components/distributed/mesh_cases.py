"""Meshes of worlds that do not exist: a process plays one rank after another of any number."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from components.distributed.mesh import AXES, Degrees, Mesh, build_mesh
from components.dryrun.world import fake_world

ORDER = ("pipeline", "data", "expert", "context", "tensor")


class Seen(NamedTuple):
    """What one rank sees: its place and its group on each axis, and its data group."""

    places: dict[str, int]
    groups: dict[str, list[int]]
    data_rank: int
    data_ranks: int
    model_ranks: int
    data_group: list[int]


def degrees_of(sizes: Mapping[str, int]) -> Degrees:
    return Degrees(**dict.fromkeys(AXES, 1) | dict(sizes))


def look_around(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> Seen:
    degrees = degrees_of(sizes)
    with fake_world(rank, degrees.ranks):
        return _see(build_mesh("cpu", degrees, order, expert_aware=True))


def _see(mesh: Mesh) -> Seen:
    return Seen(
        places={axis: mesh.place(axis) for axis in AXES},
        groups={
            axis: dist.get_process_group_ranks(mesh.axis(axis).get_group()) for axis in AXES
        },
        data_rank=mesh.data_rank,
        data_ranks=mesh.data_ranks,
        model_ranks=mesh.model_ranks,
        data_group=dist.get_process_group_ranks(mesh.dense.grad_sync.get_group()),
    )
