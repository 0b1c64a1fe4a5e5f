"""Garbage collection of Python on a schedule that all ranks share."""

import gc
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, Trainer

from components.train.module import Pretraining


@dataclass(kw_only=True, eq=False)
class GarbageCollection(Callback):
    """Collect Python's garbage (``gc``) every ``every_steps`` steps, and nothing in between.

    Its own rule collects whenever a rank has made enough objects, each at another moment, and
    all others wait for it in the next collective (torchtitan's ``gc_freq``). What is there
    before the first step is looked at once, and no more after that.
    """

    every_steps: int
    _was_enabled: bool | None = field(default=None, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.progress.step % self.every_steps == 0:
            gc.collect()

    def on_train_end(self, *_: Any) -> None:
        self.close()

    def on_exception(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        if self._was_enabled is None:  # the run failed before it began
            return
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        self._was_enabled = None
