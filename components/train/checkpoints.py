"""When checkpoints are written, and how a run stops on a signal."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer

from components.life.journal import Journal
from components.train.callback import RunCallback
from components.train.checkpoint import (
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from components.train.module import Pretraining


class Checkpoints(RunCallback):
    """Save at every cadence that a step crosses, at the end, and before stopping."""

    def __init__(self, *, folder: Path, journal: Journal, every_tokens: int, keep: int) -> None:
        self.folder = folder
        self._journal = journal
        self._every_tokens = every_tokens
        self._keep = keep

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the newest complete checkpoint, if there is one."""
        assert isinstance(pl_module, Pretraining)
        newest = newest_checkpoint(self.folder)
        if newest is not None:
            pl_module.go_on_from(load_checkpoint(newest, pl_module.engine))

    def on_step(self, module: Pretraining) -> None:
        if module.is_due(self._every_tokens) or module.stopping:
            self.save(module, "stopping" if module.stopping else "due")
        if module.stopping:
            module.trainer.should_stop = True

    def save(self, module: Pretraining, cause: str) -> None:
        """Write a checkpoint of where the run is, remove old ones, tell the journal."""
        began = time.perf_counter()
        target = save_checkpoint(self.folder, module.engine, module.progress)
        if dist.get_rank() == 0:
            prune_checkpoints(self.folder, self._keep)
        self._journal.note(
            "checkpoint",
            step=module.progress.step,
            tokens=module.progress.tokens,
            cause=cause,
            seconds=time.perf_counter() - began,
            evidence={"folder": str(target)},
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
