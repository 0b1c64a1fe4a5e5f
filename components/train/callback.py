"""The three moments of a run that our callbacks hear of, with the module's own type."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from components.train.module import Pretraining


class RunCallback(Callback):
    """Pass Lightning's hooks on; a callback overrides the moments that it needs."""

    def on_begin(self, module: Pretraining) -> None:
        """Before the first step that this process computes, weights and clock in place."""

    def on_step(self, module: Pretraining) -> None:
        """After each step, when ``module.last`` and ``module.progress`` are of that step."""

    def on_close(self) -> None:
        """When training ends, for whatever reason."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Pretraining)
        self.on_begin(pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Pretraining)
        self.on_step(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_close()
