"""Where ranks lie: as the device mesh deals them, on whole nodes."""

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from components.config.rank_groups import MESH_AXES, Node, RankGroups
from components.distributed.mesh import build_mesh
from tests.components.layouts import ORDER, parallelism

AURORA = ("data", "pipeline", "expert", "context", "tensor")


def shown(nodes: tuple[Node, ...]) -> list[tuple[int, list[int]]]:
    return [(node.number, [d.rank for d in node.devices if d.first_copy]) for node in nodes]


@pytest.mark.parametrize("order", [ORDER, AURORA])
def test_every_rank_has_the_coordinates_of_the_device_mesh(order: tuple[str, ...]) -> None:
    degrees = {"data": 2, "expert": 3, "context": 2, "tensor": 2, "pipeline": 4}
    where = parallelism(**degrees, rank_order=order)
    groups = RankGroups(where, 8)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=where.num_ranks)
    try:
        mesh = build_mesh("cpu", where)
        for rank in range(where.num_ranks):
            (place,) = (mesh.root.mesh == rank).nonzero().tolist()
            named = dict(zip(MESH_AXES, place, strict=True))
            named["data"] = named.pop("data_replicate") * 2 + named.pop("data_shard")
            assert groups.find_coordinates(rank) == named
    finally:
        dist.destroy_process_group()


def test_a_slow_pipeline_axis_spreads_the_first_copy_over_far_nodes() -> None:
    groups = RankGroups(parallelism(data=128, tensor=2, pipeline=2), 4)
    assert shown(groups.first_copy_nodes()) == [(0, [0, 1]), (64, [256, 257])]


def test_a_slow_data_axis_gives_the_first_copy_whole_neighbouring_nodes() -> None:
    groups = RankGroups(parallelism(data=32, pipeline=8, expert=12, rank_order=AURORA), 12)
    nodes = shown(groups.first_copy_nodes())
    assert nodes == [
        (number, list(range(12 * number, 12 * number + 12))) for number in range(8)
    ]


def test_the_first_copy_has_every_rank_of_one_model_and_no_other() -> None:
    groups = RankGroups(parallelism(data=3, tensor=2, pipeline=2, expert=2, context=2), 12)
    ranks = [rank for _, held in shown(groups.first_copy_nodes()) for rank in held]
    assert ranks == [
        r for r in range(groups.layout.num_ranks) if groups.find_coordinates(r)["data"] == 0
    ]


def test_labels_name_the_axes_that_are_used() -> None:
    groups = RankGroups(parallelism(data=16, tensor=2, pipeline=2), 4)
    assert groups.format_label(groups.first_copy_nodes()[1].devices[1], " ") == "d0 t1 p1"
    assert groups.label_legend == "d data of 16, t tensor of 2, p pipeline of 2"
    alone = RankGroups(parallelism(), 1)
    assert alone.format_label(alone.first_copy_nodes()[0].devices[0], " ") == "all"
    assert alone.label_legend == ""
