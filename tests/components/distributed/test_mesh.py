"""Groups of all six mesh axes equal handwritten tables, for any order and size."""

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
    """The position and group of one rank on each axis, and its data group."""

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
    """The groups of ranks along each axis larger than 1, one digit per rank.

    Those of a data group have copies of dense weights; ``samples`` are the groups of those that
    read different samples, where they are not all.
    """

    order: tuple[str, ...]
    groups: dict[str, str]
    data_groups: str
    samples: str | None = None


TABLES = [
    Table(
        ORDER,
        {"pipeline": "04 15 26 37", "data_shard": "02 13 46 57", "tensor": "01 23 45 67"},
        "02 13 46 57",
    ),
    Table(
        ("data", "tensor", "pipeline", "expert", "context"),
        {"pipeline": "01 23 45 67", "data_shard": "04 15 26 37", "tensor": "02 13 46 57"},
        "04 15 26 37",
    ),
    Table(
        ORDER,
        {"data_replicate": "04 15 26 37", "data_shard": "02 13 46 57", "tensor": "01 23 45 67"},
        "0246 1357",
    ),
    Table(
        ("context", "tensor", "expert", "pipeline", "data"),
        {"data_replicate": "02 13 46 57", "data_shard": "01 23 45 67", "tensor": "04 15 26 37"},
        "0123 4567",
    ),
    Table(
        ("context", "expert", "tensor", "data", "pipeline"),
        {"expert": "02 13 46 57", "context": "04 15 26 37", "tensor": "01 23 45 67"},
        "0246 1357",
        samples="02 13 46 57",
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: "-".join(table.groups))
def test_mesh_groups_equal_the_table(table: Table) -> None:
    sizes = {axis: len(groups.split()[0]) for axis, groups in table.groups.items()}
    ranks = len(table.data_groups.replace(" ", ""))
    for rank in range(ranks):
        seen = look_around(rank, sizes, table.order)
        for axis in MESH_AXES:
            expected = _with(rank, table.groups.get(axis, str(rank)))
            assert seen.groups[axis] == expected, (axis, rank)
            assert seen.places[axis] == expected.index(rank)
        assert seen.data_group == _with(rank, table.data_groups)
        group = _with(rank, table.samples or table.data_groups)
        assert seen.data_rank == group.index(rank)
        assert seen.data_ranks == len(group)
        assert seen.model_ranks == ranks // sizes.get("pipeline", 1)


def _with(rank: int, groups: str) -> list[int]:
    (group,) = (group for group in groups.split() if str(rank) in group)
    return [int(digit) for digit in group]


LARGE = {
    739: {"pipeline": (16, 11), "data_shard": (8, 4), "tensor": (8, 3)},  # of 1,024 ranks
    9_999: {  # of 12,288
        "pipeline": (12, 9),
        "data_replicate": (8, 6),
        "data_shard": (16, 1),
        "tensor": (8, 7),
    },
}


@pytest.mark.long
@pytest.mark.parametrize("rank", LARGE)
def test_a_mesh_of_thousands_of_ranks_is_built(rank: int) -> None:
    sizes = {axis: size for axis, (size, _) in LARGE[rank].items()}
    places = {axis: place for axis, (_, place) in LARGE[rank].items()}
    # A place is a digit of the rank's number: 739 = (11 * 8 + 4) * 8 + 3.
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        seen = pool.submit(look_around, rank, sizes, ORDER).result()
    assert seen.places == dict.fromkeys(MESH_AXES, 0) | places
    assert len(seen.data_group) == seen.data_ranks
    assert seen.data_group[seen.data_rank] == rank
    assert seen.groups["tensor"] == list(range(rank // 8 * 8, rank // 8 * 8 + 8))
