"""Validation by tokens: before the first step, at a cadence of tokens, and at the end."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from components.train.module import Pretraining


class ValidationByTokens(Callback):
    """Callback that runs Lightning's validation loop at each ``evaluation.every_tokens``.

    Not by ``val_check_interval``: it counts batches, and their tokens change (ramps, phases).
    """

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        if pl_module.progress.step == 0:
            run_validation(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        every_tokens = pl_module.recipe.evaluation.every_tokens
        if not pl_module.verdict and pl_module.is_due(every_tokens):
            run_validation(trainer)


def run_validation(trainer: Trainer) -> None:
    """Run the validation loop during training, as Lightning does between two batches."""
    connector = trainer._logger_connector
    first_batch = connector._first_loop_iter
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    connector._first_loop_iter = first_batch
