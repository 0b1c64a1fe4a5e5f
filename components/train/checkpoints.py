"""When checkpoints are written, and how a run stops on a signal."""

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.distributed.constants import default_pg_timeout

from components.checkpoint.agreement import by_first
from components.checkpoint.copying import check_target
from components.checkpoint.keeping import Policy
from components.checkpoint.loading import load_newest
from components.checkpoint.marker import Kind
from components.checkpoint.saving import Finished, Saver, make_stager
from components.spec.sections import Checkpoint
from components.train.callback import RunCallback
from components.train.journal import Journal
from components.train.module import Pretraining


class Checkpoints(RunCallback):
    """Save at every cadence that a step crosses, at the end, and before stopping."""

    def __init__(
        self,
        *,
        folder: Path,
        journal: Journal,
        settings: Checkpoint,
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._settings = settings
        self._say = say
        self._saver: Saver | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        assert isinstance(pl_module, Pretraining)
        fingerprint = pl_module.recipe.fingerprint()
        chosen = load_newest(self._folder, pl_module.engine, fingerprint=fingerprint)
        if chosen is not None:
            progress = chosen.marker.progress
            pl_module.progress = progress
            if progress.loss_scale is not None:
                pl_module.engine.load_scale_state(progress.loss_scale)
            for one in chosen.damaged:
                self._say(f"going on from {chosen.checkpoint}: {one.path} {one.problem}")
            self._journal.resume(progress, chosen.damaged)
        self._saver = self._make_saver(pl_module, fingerprint)

    def on_step(self, module: Pretraining) -> None:
        assert self._saver is not None
        if self._saver.has_failed:
            module.stop_asked = True  # all ranks hear of it in the next step, and wait for it
        self._note(self._saver.poll())
        if module.stopping:
            self._note(self._saver.wait())
        if kinds := self._due(module):
            loss = self._journal.held_out_loss(module.progress.tokens)
            saver, progress = self._saver, module.progress
            self._note(saver.save(module.engine, progress, kinds=kinds, held_out_loss=loss))
        if module.stopping:
            self._note(self._saver.wait())
            module.trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saver is not None:
            self._note(self._saver.wait())
        super().on_train_end(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Let a save come to its end, but for who has asked twice to stop at once."""
        if not isinstance(exception, KeyboardInterrupt):
            super().on_exception(trainer, pl_module, exception)

    def on_close(self) -> None:
        if self._saver is not None:
            self._saver.close()

    def _due(self, module: Pretraining) -> list[Kind]:
        kinds: list[Kind] = []
        if module.is_due(self._settings.every_tokens) or module.stopping:
            kinds.append("tokens")
        weights = self._settings.weights_every_tokens
        if weights != "none" and module.is_due(weights):
            kinds.append("weights")
        return kinds

    def _note(self, finished: list[Finished]) -> None:
        for one in finished:
            self._journal.checkpoint(one)

    def _make_saver(self, module: Pretraining, fingerprint: str) -> Saver:
        settings = self._settings
        copy_to = None if settings.copy_to == "none" else Path(settings.copy_to)
        if copy_to is not None:
            by_first(lambda: check_target(copy_to))
        patience = timedelta(seconds=settings.retry_seconds)
        group = dist.new_group(backend="gloo", timeout=default_pg_timeout + patience)
        return Saver(
            folder=self._folder,
            fingerprint=fingerprint,
            group=group,
            stager=make_stager(module.device) if settings.asynchronous else None,
            policy=Policy(
                last=settings.keep,
                every_tokens=settings.keep_every_tokens,
                best=settings.keep_best,
            ),
            files=settings.files,
            retry_seconds=settings.retry_seconds,
            copy_to=copy_to,
        )


class StopOnRequest(RunCallback):
    """Turn a first Ctrl-C, a SIGTERM or the file ``stop`` into a wish to stop after a step."""

    def __init__(self, *, file: Path, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._before: dict[int, Any] = {}

    def on_begin(self, module: Pretraining) -> None:
        def ask(number: int, frame: FrameType | None) -> None:
            if module.stop_asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            module.stop_asked = True
            self._say(f"{signal.Signals(number).name}: saving after this step, then stopping")

        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, ask)

    def on_step(self, module: Pretraining) -> None:
        if dist.get_rank() == 0 and not module.stop_asked and self._file.exists():
            module.stop_asked = True
            self._say(f"{self._file} exists: saving after the next step, then stopping")

    def on_close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
