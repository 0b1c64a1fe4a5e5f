"""The six axes hold the ranks that a written-out table says, in any order and at any size."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import pytest
import torch.distributed as dist

from components.config.rank_groups import MESH_AXES
from components.distributed.mesh import Mesh, build_mesh
from components.dryrun.fake_world import fake_world
from tests.components.layouts import ORDER, mesh_layout


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


class Table(NamedTuple):
    """For each axis that has a size, the groups of ranks along it.

    Those of a data group have copies of dense weights; ``samples`` are the groups of those that
    read different samples, where they are not all.
    """

    order: tuple[str, ...]
    groups: dict[str, list[list[int]]]
    data_groups: list[list[int]]
    samples: list[list[int]] | None = None


PIPELINE_DATA_TENSOR = Table(
    order=ORDER,
    groups={
        "pipeline": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "data_shard": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "tensor": [[0, 1], [2, 3], [4, 5], [6, 7]],
    },
    data_groups=[[0, 2], [1, 3], [4, 6], [5, 7]],
)
DATA_TENSOR_PIPELINE = Table(
    order=("data", "tensor", "pipeline", "expert", "context"),
    groups={
        "pipeline": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "data_shard": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "tensor": [[0, 2], [1, 3], [4, 6], [5, 7]],
    },
    data_groups=[[0, 4], [1, 5], [2, 6], [3, 7]],
)
TENSOR_PIPELINE_DATA = Table(
    order=("tensor", "expert", "context", "pipeline", "data"),
    groups={
        "pipeline": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "data_shard": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "tensor": [[0, 4], [1, 5], [2, 6], [3, 7]],
    },
    data_groups=[[0, 1], [2, 3], [4, 5], [6, 7]],
)
REPLICAS_OF_SHARDS = Table(
    order=ORDER,
    groups={
        "data_replicate": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "data_shard": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "tensor": [[0, 1], [2, 3], [4, 5], [6, 7]],
    },
    data_groups=[[0, 2, 4, 6], [1, 3, 5, 7]],
)
REPLICAS_INSIDE = Table(
    order=("context", "tensor", "expert", "pipeline", "data"),
    groups={
        "data_replicate": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "data_shard": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "tensor": [[0, 4], [1, 5], [2, 6], [3, 7]],
    },
    data_groups=[[0, 1, 2, 3], [4, 5, 6, 7]],
)
EXPERT_CONTEXT = Table(
    order=("context", "expert", "tensor", "data", "pipeline"),
    groups={
        "expert": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "context": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "tensor": [[0, 1], [2, 3], [4, 5], [6, 7]],
    },
    data_groups=[[0, 2, 4, 6], [1, 3, 5, 7]],
    samples=[[0, 2], [1, 3], [4, 6], [5, 7]],
)
FOUR = Table(
    order=("data", "pipeline", "expert", "context", "tensor"),
    groups={"pipeline": [[0, 1], [2, 3]], "data_shard": [[0, 2], [1, 3]]},
    data_groups=[[0, 2], [1, 3]],
)


@pytest.mark.parametrize(
    "table",
    [
        PIPELINE_DATA_TENSOR,
        DATA_TENSOR_PIPELINE,
        TENSOR_PIPELINE_DATA,
        REPLICAS_OF_SHARDS,
        REPLICAS_INSIDE,
        EXPERT_CONTEXT,
        FOUR,
    ],
    ids=lambda table: "-".join(table.groups),
)
def test_every_axis_holds_the_ranks_of_the_table(table: Table) -> None:
    sizes = {axis: len(groups[0]) for axis, groups in table.groups.items()}
    ranks = sum(map(len, table.data_groups))
    for rank in range(ranks):
        seen = look_around(rank, sizes, table.order)
        for axis in MESH_AXES:
            expected = _with(rank, table.groups.get(axis, [[rank]]))
            assert seen.groups[axis] == expected, (axis, rank)
            assert seen.places[axis] == expected.index(rank)
        assert seen.data_group == _with(rank, table.data_groups)
        group = _with(rank, table.samples or table.data_groups)
        assert seen.data_rank == group.index(rank)
        assert seen.data_ranks == len(group)
        assert seen.model_ranks == ranks // sizes.get("pipeline", 1)


def _with(rank: int, groups: list[list[int]]) -> list[int]:
    return next(group for group in groups if rank in group)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sizes", "rank", "places"),
    [
        (
            {"pipeline": 16, "data_shard": 8, "tensor": 8},  # 1,024 ranks
            739,
            {"pipeline": 11, "data_shard": 4, "tensor": 3},
        ),
        pytest.param(
            {"pipeline": 12, "data_replicate": 8, "data_shard": 16, "tensor": 8},  # 12,288
            9_999,
            {"pipeline": 9, "data_replicate": 6, "data_shard": 1, "tensor": 7},
            marks=pytest.mark.long,
        ),
    ],
    ids=["1,024", "12,288"],
)
def test_a_world_of_thousands_is_built(
    sizes: dict[str, int], rank: int, places: dict[str, int]
) -> None:
    # A place is a digit of the rank's number: 739 = (11 * 8 + 4) * 8 + 3.
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        seen = pool.submit(look_around, rank, sizes, ORDER).result()
    assert seen.places == dict.fromkeys(MESH_AXES, 0) | places
    assert len(seen.data_group) == seen.data_ranks
    assert seen.data_group[seen.data_rank] == rank
    assert seen.groups["tensor"] == list(range(rank // 8 * 8, rank // 8 * 8 + 8))
