"""Which axis a collective is said to be of, and how much it carries."""

import pytest
import torch
import torch.distributed as dist

from components.distributed.collectives import all_gather, reduce_scatter
from components.distributed.mesh import build_mesh
from components.dryrun.fake_world import fake_world
from components.dryrun.trackers import CollectiveKind, CollectiveLedger, axes_of_groups
from tests.components.layouts import mesh_layout, parallelism

ORDER = ("pipeline", "data", "expert", "context", "tensor")


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ({"data_shard": 8}, {("data", 8)}),
        (
            {"data_replicate": 2, "expert": 3, "tensor": 4},
            {("data", 2), ("expert", 3), ("tensor", 4), ("data x expert", 6), ("world", 24)},
        ),
        (
            {"data_shard": 2, "context": 2, "pipeline": 3},
            {
                ("data", 2),
                ("context", 2),
                ("pipeline", 3),
                ("data x context", 4),
                ("world", 12),
            },
        ),
    ],
)
def test_groups_have_the_names_of_their_axes(
    sizes: dict[str, int], axes: set[tuple[str, int]]
) -> None:
    layout = mesh_layout(sizes)
    with fake_world(0, layout.num_ranks):
        found = axes_of_groups(build_mesh("cpu", layout))
    assert set(found.values()) == axes


def test_a_message_is_all_that_a_gather_collects_and_a_scatter_deals() -> None:
    with fake_world(0, 8):
        mesh = build_mesh("cpu", parallelism(data=4, tensor=2))
        group = mesh.get_axis("data_shard").get_group()
        part, whole = torch.zeros(5), torch.zeros(20)
        with CollectiveLedger(mesh) as ledger:
            all_gather(whole, part, group=group)
            reduce_scatter(part, whole, group=group)
            dist.all_reduce(part, group=group)
            dist.send(part, 2, group=group)
    sizes = {"all_gather": 80, "reduce_scatter": 80, "all_reduce": 20, "send": 20}
    expected = {
        CollectiveKind("data", name, "float32", 4): size for name, size in sizes.items()
    }
    assert dict(ledger.bytes) == expected
    assert set(ledger.calls.values()) == {1}
