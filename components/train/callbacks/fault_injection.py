"""Fault injection: inject the recipe's faults into this rank before their steps."""

from collections.abc import Sequence

from lightning.pytorch import Callback, Trainer

from components.config.schema.monitoring import Fault
from components.fault_tolerance.faults import FaultInjector, Reach
from components.run.folder import RunFolder
from components.train.batches import StepBatch
from components.train.module import Pretraining


class FaultInjection(Callback):
    """Callback that injects the faults of this ``rank`` before the steps in the recipe."""

    def __init__(self, *, folder: RunFolder, faults: Sequence[Fault], rank: int) -> None:
        self._injector = FaultInjector(faults=faults, folder=folder.path, rank=rank)
        self._folder = folder

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Pretraining, batch: StepBatch, batch_idx: int
    ) -> None:
        pl_module.engine.wait_for_weights()  # a pending all-gather would undo a fault
        reach = Reach(
            checkpoints=self._folder.checkpoints,
            batch=batch.tokens,
            stages=pl_module.stage_decoders,
        )
        self._injector.before_step(pl_module.progress, reach)
