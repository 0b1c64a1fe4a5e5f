"""Garbage collection of Python at the same steps on all ranks."""

import gc
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, Trainer

from components.train.module import Pretraining


@dataclass(kw_only=True, eq=False)
class GarbageCollection(Callback):
    """Callback that runs Python's ``gc`` only every ``every_steps`` steps.

    By default, each rank collects at another moment, and all others wait in the next collective
    (compare torchtitan's ``gc_freq``). Objects from before the first step are frozen, and stay
    frozen after the run if the program had frozen objects itself.
    """

    every_steps: int
    _was_enabled: bool | None = field(default=None, init=False)
    _unfreezes: bool = field(default=True, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._was_enabled = gc.isenabled()
        self._unfreezes = gc.get_freeze_count() == 0
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
        if self._was_enabled is None:  # the run failed before `on_train_start`
            return
        if self._unfreezes:
            gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        self._was_enabled = None
