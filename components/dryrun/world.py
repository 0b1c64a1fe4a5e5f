"""A rank of a world that does not exist: a fake process group, tensors without values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from torch import Tensor
from typing_extensions import override

from components.config.schema.recipe import Recipe
from components.distributed.devices import device_type
from components.distributed.mesh import build_mesh
from components.distributed.pipeline import Microbatches
from components.dryrun.memory import OperatorWatch
from components.engine.parallelize import RankModel, parallelize_model
from components.torch_internals.operators import READ_NUMBER, FakeStore, FakeTensorMode
from components.train.batches import StepBatches
from components.train.module import Pretraining
from components.train.trainer import MeshStrategy, degrees_of


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[None]:
    """Make this process one of ``ranks`` whose collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Answers(OperatorWatch):
    """Answer who asks a fake tensor for a number: one, or yes.

    A step asks for a microbatch's number, the norm, and what ranks agreed on; torch's pipelines
    ask whether all stages know the shapes of their messages.
    """

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is not READ_NUMBER.default:
            return func(*args, **kwargs)
        dtype = args[0].dtype
        return dtype is torch.bool or (1.0 if dtype.is_floating_point else 1)


class NoBatches(StepBatches):
    """Stand for samples that nobody reads: a dry run makes its batches itself."""

    def __init__(self) -> None:
        pass

    @override
    def sample_ids(self, step: int) -> list[Any]:
        return []


def trainer_of(recipe: Recipe) -> Trainer:
    """Make what a module asks for its mesh, that of the default group; nothing is fitted."""
    degrees = recipe.parallelism
    strategy = MeshStrategy(degrees)
    strategy.mesh = build_mesh(
        "cpu", degrees_of(degrees), degrees.rank_order, expert_aware=degrees.expert_aware
    )
    return Trainer(
        accelerator="cpu",
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )


def empty_batch(recipe: Recipe, microbatches: int) -> Tensor:
    """Make a step's tokens without values: (microbatches, sequences, length + 1)."""
    sequences, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    return torch.empty(microbatches, sequences, length + 1, dtype=torch.int64)


class FakeRank(Pretraining):
    """The module of a run, its weights in ``fake``, on the mesh of the default group."""

    microbatches: Microbatches

    def __init__(self, *, recipe: Recipe, fake: FakeTensorMode) -> None:
        super().__init__(recipe=recipe, batches=lambda _: NoBatches(), eod_id=0)
        self._fake = fake
        self.trainer = trainer_of(recipe)

    @override
    def build_model(self) -> RankModel:
        device = torch.device(device_type(self.recipe.cluster.device))
        model = parallelize_model(self.recipe, self.mesh, device=device)
        with self._fake:
            for decoder in model.stages:
                decoder.to_empty(device="cpu")
        return model

    @override
    def make_microbatches(self) -> Microbatches:
        self.microbatches = super().make_microbatches()
        return self.microbatches
