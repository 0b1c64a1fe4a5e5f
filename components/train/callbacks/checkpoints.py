"""When checkpoints are written, and how a run stops on a signal."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch.distributed as dist
from lightning.pytorch import Trainer
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


@dataclass(kw_only=True, eq=False)
class Checkpoints(RunCallback):
    """Save at every cadence that a step crosses, at the end, and before stopping."""

    folder: Path
    journal: EventLog
    metrics: Metrics
    settings: Checkpoint
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    _saver: Saver | None = field(default=None, init=False)

    @property
    def saver(self) -> Saver:
        assert self._saver is not None, "the run has begun"
        return self._saver

    def on_load(self, module: Pretraining) -> None:
        """Go on from the newest whole checkpoint, if there is one.

        Every run has the folder: a run that did not wait for it would begin anew.

        Raises:
            RecipeError: it is away for longer than a save would wait.
        """
        by_first(lambda: self._patience()(self.folder, self.folder.stat))
        fingerprint = module.recipe.fingerprint()
        chosen = load_newest(self.folder, module.engine.state, fingerprint=fingerprint)
        if chosen is not None:
            module.go_on_from(chosen.marker.progress)
            for one in chosen.damaged:
                self.say(f"going on from {chosen.checkpoint}: {one.path} {one.problem}")
                self._note_damaged(chosen.marker.progress, one)
        self._saver = self._make_saver(module, fingerprint)

    def on_step(self, module: Pretraining) -> None:
        if self.saver.has_failed:
            module.stop_asked = True  # all ranks hear of it in the next step, and wait for it
        self._note(self.saver.poll(), "due")
        kinds: list[Kind] = []
        if module.is_due(self.settings.every_tokens) or module.stopping:
            kinds.append("tokens")
        weights = self.settings.weights_every_tokens
        if weights != "none" and module.is_due(weights):
            kinds.append("weights")
        if kinds:
            self.save(module, kinds, "stopping" if module.stopping else "due")
        if module.stopping:
            module.trainer.should_stop = True

    def save(self, module: Pretraining, kinds: Sequence[Kind], cause: Cause) -> None:
        """Begin checkpoints of where the run is; wait for them where it stops here."""
        loss = self.metrics.held_out_loss(module.progress.tokens)
        saver, progress = self.saver, module.progress
        before = saver.save(module.engine.state, progress, kinds=kinds, held_out_loss=loss)
        self._note(before, "due")
        if cause == "stopping":
            self._note(saver.wait(), cause)

    def go_back(self, module: Pretraining, tokens: int) -> RunProgress | None:
        """Load the newest whole checkpoint of at most ``tokens``, once the last is written."""
        self._note(self.saver.wait(), "due")
        chosen = choose_up_to(self.folder, tokens)
        if chosen is None:
            return None
        for one in chosen.damaged:
            self._note_damaged(chosen.marker.progress, one)
        fingerprint = module.recipe.fingerprint()
        return load_checkpoint(
            chosen.checkpoint, chosen.marker, module.engine.state, fingerprint=fingerprint
        )

    def claim(self, progress: RunProgress) -> list[str]:
        """Let a restart go on from here too: ``progress`` is amended, what is later removed."""
        target = self.folder / name_of("tokens", progress.tokens)

        def amended() -> list[str]:
            amend(target, progress)
            return drop_after(target)

        return by_first(lambda: self._patience()(target, amended))

    def on_end(self, module: Pretraining) -> None:
        self._note(self.saver.wait(), "due")

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Let a save come to its end, but for who has asked twice to stop at once."""
        if not isinstance(exception, KeyboardInterrupt):
            super().on_exception(trainer, pl_module, exception)

    def on_close(self) -> None:
        if self._saver is not None:
            self._saver.close()

    def _note(self, finished: list[FinishedCheckpoint], cause: Cause) -> None:
        """Report of checkpoints that are whole by now; later steps may stand before them."""
        for one in finished:
            evidence = asdict(one) | {"folder": str(one.folder)}
            del evidence["progress"]
            seconds = evidence.pop("stall_seconds")
            self.journal.note("checkpoint", one.progress, cause, evidence, seconds=seconds)

    def _note_damaged(self, progress: RunProgress, found: DamagedCheckpointError) -> None:
        evidence = {"path": found.path, "problem": found.problem}
        self.journal.note("damaged", progress, "a newer checkpoint is not whole", evidence)

    def _patience(self) -> Patience:
        return Patience(seconds=self.settings.retry_seconds, stopped=self.stopped)

    def _make_saver(self, module: Pretraining, fingerprint: str) -> Saver:
        settings = self.settings
        copy_to = None if settings.copy_to == "none" else Path(settings.copy_to)
        if copy_to is not None:
            by_first(lambda: check_target(copy_to))
        patience = timedelta(seconds=settings.retry_seconds)
        group = dist.new_group(backend="gloo", timeout=default_pg_timeout + patience)
        return Saver(
            folder=self.folder,
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
            stopped=self.stopped,
        )


@dataclass(kw_only=True, eq=False)
class StopOnRequest(RunCallback):
    """Turn a first Ctrl-C, a SIGTERM or the file ``stop`` into a wish to stop after a step."""

    file: Path
    say: Callable[[str], None]
    say_at_once: Callable[[str], None]
    _before: dict[int, Any] = field(default_factory=dict, init=False)
    _signalled: bool = field(default=False, init=False)

    def is_asked(self) -> bool:
        """Whether a signal or the file has asked, as who waits for a disk wants to know."""
        return self._signalled or self.file.exists()

    def on_begin(self, module: Pretraining) -> None:
        def ask(number: int, frame: FrameType | None) -> None:
            if module.stop_asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            module.stop_asked = self._signalled = True
            name = signal.Signals(number).name
            self.say_at_once(f"{name}: saving after this step, then stopping")

        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, ask)

    def on_step(self, module: Pretraining) -> None:
        if dist.get_rank() == 0 and not module.stop_asked and self.file.exists():
            module.stop_asked = True
            self.say(f"{self.file} exists: saving after the next step, then stopping")

    def on_close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
