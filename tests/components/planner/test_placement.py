"""Where ranks lie: as the device mesh deals them, on whole nodes."""

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from components.distributed.mesh import AXES, Degrees, build_mesh
from components.planner.job import (
    Node,
    coordinates,
    label,
    meaning,
    nodes_of_first_copy,
)
from tests.components.planner.jobs import ORDER, layout

AURORA = ("data", "pipeline", "expert", "context", "tensor")


def shown(nodes: tuple[Node, ...]) -> list[tuple[int, list[int]]]:
    return [(node.number, [d.rank for d in node.devices if d.first_copy]) for node in nodes]


@pytest.mark.parametrize("order", [ORDER, AURORA])
def test_every_rank_has_the_coordinates_of_the_device_mesh(order: tuple[str, ...]) -> None:
    degrees = {"data": 2, "expert": 3, "context": 2, "tensor": 2, "pipeline": 4}
    where = layout(**degrees, rank_order=order)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=where.ranks)
    try:
        mesh = build_mesh(
            "cpu",
            Degrees(pipeline=4, data_replicate=1, data_shard=2, expert=3, context=2, tensor=2),
            order,
            expert_aware=True,
        )
        for rank in range(where.ranks):
            (place,) = (mesh.root.mesh == rank).nonzero().tolist()
            named = dict(zip(AXES, place, strict=True))
            named["data"] = named.pop("data_replicate") * 2 + named.pop("data_shard")
            assert coordinates(where, rank) == named
    finally:
        dist.destroy_process_group()


def test_a_slow_pipeline_axis_spreads_the_first_copy_over_far_nodes() -> None:
    where = layout(data=128, tensor=2, pipeline=2, devices_per_node=4)
    assert shown(nodes_of_first_copy(where)) == [(0, [0, 1]), (64, [256, 257])]


def test_a_slow_data_axis_gives_the_first_copy_whole_neighbouring_nodes() -> None:
    where = layout(data=32, pipeline=8, expert=12, rank_order=AURORA, devices_per_node=12)
    nodes = shown(nodes_of_first_copy(where))
    assert nodes == [
        (number, list(range(12 * number, 12 * number + 12))) for number in range(8)
    ]


def test_the_first_copy_has_every_rank_of_one_model_and_no_other() -> None:
    where = layout(data=3, tensor=2, pipeline=2, expert=2, context=2, devices_per_node=12)
    ranks = [rank for _, held in shown(nodes_of_first_copy(where)) for rank in held]
    assert ranks == [r for r in range(where.ranks) if coordinates(where, r)["data"] == 0]


def test_labels_name_the_axes_that_are_used() -> None:
    where = layout(data=16, tensor=2, pipeline=2, devices_per_node=4)
    assert label(nodes_of_first_copy(where)[1].devices[1], where, " ") == "d0 t1 p1"
    assert meaning(where) == "d data of 16, t tensor of 2, p pipeline of 2"
    alone = layout(devices_per_node=1)
    assert label(nodes_of_first_copy(alone)[0].devices[0], alone, " ") == "all"
    assert meaning(alone) == ""
