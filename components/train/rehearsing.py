"""The rehearsal's place in the loop: before each step, its batch read and nothing computed."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from components.life.rehearsal import Reach, Rehearsal
from components.train.callback import RunCallback
from components.train.module import Pretraining


class Rehearsing(RunCallback):
    """Fire the faults that are due; it comes after the watchdog has set the step's limit."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Pretraining)
        reach = Reach(run_folder=self._rehearsal.folder, batch=batch, stages=pl_module.decoders)
        progress = pl_module.progress
        self._rehearsal.before_step(progress.step + 1, progress.tokens, reach)
