"""Which random stream a microbatch's dropout draws from."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.compose import compose_recipe
from components.distributed.mesh import Mesh, build_mesh
from components.dryrun.world import fake_world
from components.engine.microbatch_forward import StageCompute
from components.train.trainer import degrees_of

RECIPE = compose_recipe(read_point(["recipe=teuken7b", "scale=mini"]))


def mesh_of(data: int) -> Mesh:
    words = ["recipe=teuken7b", "scale=mini", f"parallelism.data={data}"]
    parallelism = compose_recipe(read_point(words)).parallelism
    order = parallelism.rank_order
    return build_mesh("cpu", degrees_of(parallelism), order, expert_aware=True)


def seeds(mesh: Mesh, microbatches: int, *, step: int = 3) -> list[int]:
    """Seed one layer in each of this rank's microbatches."""
    compute = StageCompute(recipe=RECIPE, mesh=mesh, device=torch.device("cpu"), eod_id=0)
    compute.begin(step, microbatches)
    found = []
    for number in range(microbatches):
        compute.take(number)
        found.append(compute.dropout_seed("1"))
    return found


def test_data_ranks_draw_the_streams_that_one_process_does() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone, later = seeds(mesh_of(1), 8), seeds(mesh_of(1), 8, step=4)
    dist.destroy_process_group()
    together = []
    for rank in range(4):
        with fake_world(rank, 4):
            together += seeds(mesh_of(4), 2)
    assert together == alone
    assert len({*alone, *later}) == 16
