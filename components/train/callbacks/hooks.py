"""The moments of a run that our callbacks hear of, with the module's own type."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from components.fault_tolerance.guards import StepVerdict
from components.train.module import Pretraining


class RunCallback(Callback):
    """Pass Lightning's hooks on; a callback overrides the moments that it needs."""

    def on_begin(self, module: Pretraining) -> None:
        """Before the first step that this process computes, weights and clock in place."""

    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        """Before each step, which will read ``batch`` (microbatches, sequences, length + 1)."""

    def on_bad_step(self, module: Pretraining, verdict: StepVerdict) -> None:
        """After a step that was not taken, in the order of the callbacks."""

    def on_step(self, module: Pretraining) -> None:
        """After each step, when ``module.last`` and ``module.progress`` are of that step."""

    def on_close(self) -> None:
        """When training ends, for whatever reason."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Pretraining)
        self.on_begin(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Pretraining)
        self.before_step(pl_module, batch)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Pretraining)
        if pl_module.verdict is None:
            self.on_step(pl_module)
        else:
            self.on_bad_step(pl_module, pl_module.verdict)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_close()
