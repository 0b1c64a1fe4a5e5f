"""When checkpoints are written, and how a run stops on a signal."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.distributed.constants import default_pg_timeout

from components.checkpoint.error_sync import by_first
from components.checkpoint.loading import choose_up_to, load_checkpoint, load_newest
from components.checkpoint.metadata import DamagedCheckpointError, Kind, RunProgress, name_of
from components.checkpoint.retention import Policy, amend, check_target, drop_after
from components.checkpoint.saving import FinishedCheckpoint, Saver
from components.checkpoint.state import HostBuffers
from components.config.schema.sections import Checkpoint
from components.run.disk import Patience
from components.run.event_log import EventLog
from components.train.callbacks.hooks import RunCallback
from components.train.callbacks.metrics_logger import Metrics
from components.train.module import Pretraining

Cause = Literal["due", "stopping"]


class Checkpoints(RunCallback):
    """Save at every cadence that a step crosses, at the end, and before stopping."""

    def __init__(
        self,
        *,
        folder: Path,
        journal: EventLog,
        metrics: Metrics,
        settings: Checkpoint,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._stopped = stopped
        self._folder = folder
        self._journal = journal
        self._metrics = metrics
        self._settings = settings
        self._say = say
        self._saver: Saver | None = None

    @property
    def saver(self) -> Saver:
        assert self._saver is not None, "the run has begun"
        return self._saver

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        assert isinstance(pl_module, Pretraining)
        self._wait_for_folder()
        fingerprint = pl_module.recipe.fingerprint()
        chosen = load_newest(self._folder, pl_module.engine, fingerprint=fingerprint)
        if chosen is not None:
            pl_module.go_on_from(chosen.marker.progress)
            for one in chosen.damaged:
                self._say(f"going on from {chosen.checkpoint}: {one.path} {one.problem}")
                self._note_damaged(chosen.marker.progress, one)
        self._saver = self._make_saver(pl_module, fingerprint)

    def on_step(self, module: Pretraining) -> None:
        if self.saver.has_failed:
            module.stop_asked = True  # all ranks hear of it in the next step, and wait for it
        self._note(self.saver.poll(), "due")
        if kinds := self._due(module):
            self.save(module, kinds, "stopping" if module.stopping else "due")
        if module.stopping:
            module.trainer.should_stop = True

    def save(self, module: Pretraining, kinds: Sequence[Kind], cause: Cause) -> None:
        """Begin checkpoints of where the run is; wait for them where it stops here."""
        loss = self._metrics.held_out_loss(module.progress.tokens)
        saver, progress = self.saver, module.progress
        before = saver.save(module.engine, progress, kinds=kinds, held_out_loss=loss)
        self._note(before, "due")
        if cause == "stopping":
            self._note(saver.wait(), cause)

    def go_back(self, module: Pretraining, tokens: int) -> RunProgress | None:
        """Load the newest whole checkpoint of at most ``tokens``, once the last is written."""
        self._note(self.saver.wait(), "due")
        chosen = choose_up_to(self._folder, tokens)
        if chosen is None:
            return None
        for one in chosen.damaged:
            self._note_damaged(chosen.marker.progress, one)
        fingerprint = module.recipe.fingerprint()
        return load_checkpoint(
            chosen.checkpoint, chosen.marker, module.engine, fingerprint=fingerprint
        )

    def claim(self, progress: RunProgress) -> list[str]:
        """Let a restart go on from here too: ``progress`` is amended, what is later removed."""
        target = self._folder / name_of("tokens", progress.tokens)

        def amended() -> list[str]:
            amend(target, progress)
            return drop_after(target)

        return by_first(lambda: self._patience()(target, amended))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saver is not None:
            self._note(self._saver.wait(), "due")
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

    def _note(self, finished: list[FinishedCheckpoint], cause: Cause) -> None:
        """Tell of checkpoints that are whole by now; later steps may stand before them."""
        for one in finished:
            evidence = asdict(one) | {"folder": str(one.folder)}
            del evidence["progress"]
            self._journal.note(
                "checkpoint",
                step=one.progress.step,
                tokens=one.progress.tokens,
                cause=cause,
                seconds=evidence.pop("stall_seconds"),
                evidence=evidence,
            )

    def _note_damaged(self, progress: RunProgress, found: DamagedCheckpointError) -> None:
        self._journal.note(
            "damaged",
            step=progress.step,
            tokens=progress.tokens,
            cause="a newer checkpoint is not whole",
            seconds=0.0,
            evidence={"path": found.path, "problem": found.problem},
        )

    def _wait_for_folder(self) -> None:
        """Look whether the folder is there, as every run's is: without it one would begin anew.

        Raises:
            RecipeError: it is away for longer than a save would wait.
        """
        by_first(lambda: self._patience()(self._folder, self._folder.stat))

    def _patience(self) -> Patience:
        return Patience(seconds=self._settings.retry_seconds, stopped=self._stopped)

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
            stager=HostBuffers(module.device) if settings.asynchronous else None,
            policy=Policy(
                last=settings.keep,
                every_tokens=settings.keep_every_tokens,
                best=settings.keep_best,
            ),
            files=settings.files,
            retry_seconds=settings.retry_seconds,
            copy_to=copy_to,
            stopped=self._stopped,
        )


class StopOnRequest(RunCallback):
    """Turn a first Ctrl-C, a SIGTERM or the file ``stop`` into a wish to stop after a step."""

    def __init__(
        self, *, file: Path, say: Callable[[str], None], say_at_once: Callable[[str], None]
    ) -> None:
        self._file = file
        self._say = say
        self._say_at_once = say_at_once
        self._before: dict[int, Any] = {}
        self._signalled = False

    def is_asked(self) -> bool:
        """Whether a signal or the file has asked, as who waits for a disk wants to know."""
        return self._signalled or self._file.exists()

    def on_begin(self, module: Pretraining) -> None:
        def ask(number: int, frame: FrameType | None) -> None:
            if module.stop_asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            module.stop_asked = self._signalled = True
            name = signal.Signals(number).name
            self._say_at_once(f"{name}: saving after this step, then stopping")

        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, ask)

    def on_step(self, module: Pretraining) -> None:
        if dist.get_rank() == 0 and not module.stop_asked and self._file.exists():
            module.stop_asked = True
            self._say(f"{self._file} exists: saving after the next step, then stopping")

    def on_close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
