"""A dry run's peak against what the GPU's own allocator gave out, for a layer at full width."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.distributed.devices import peak_memory_bytes
from components.dryrun.fake_world import empty_batch, trainer_of
from components.dryrun.rank_roles import rehearse_roles
from components.train.batches import StepBatch
from components.train.module import Pretraining

# The allocator rounds up, and libraries take memory from it for themselves.
TOLERANCE = 0.05
WORDS = (
    *("recipe=teuken7b", "scale=full", "model.num_layers=1", "precision.compute=bfloat16"),
    *("cluster.ranks=1", "parallelism.data=1", "parallelism.tensor=1"),
    *("parallelism.pipeline=1", "parallelism.zero=0", "parallelism.sequence_parallel=false"),
    *("budget.global_batch_tokens=8192", "budget.total_tokens=81920"),
)


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train_peak(recipe: Recipe, device: torch.device) -> int:
    module = Pretraining(recipe=recipe, eod_id=0)
    module.trainer = trainer_of(recipe)
    module.to(device)
    module.configure_model()
    module.configure_optimizers()
    for _ in range(3):
        batch = torch.zeros_like(empty_batch(recipe, 2).tokens, device=device)
        module.training_step(StepBatch(batch))
    return peak_memory_bytes(device)


@pytest.mark.gpu
@pytest.mark.usefixtures("world_of_one")
def test_the_peak_is_that_of_the_gpus_allocator(gpu: str) -> None:
    recipe = compose_recipe(read_point([*WORDS, f"cluster.device={gpu}"]))
    (found,) = rehearse_roles(recipe, lambda _: None).values()
    peak = max(one["bytes"] for one in found["peaks"].values())
    assert peak == pytest.approx(train_peak(recipe, torch.device(gpu, 0)), rel=TOLERANCE)
