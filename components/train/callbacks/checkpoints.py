"""Checkpoint callback: schedules saves, and loads at the start and on rollbacks."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, Trainer
from torch.distributed.constants import default_pg_timeout

from components.checkpoint import loading
from components.checkpoint.choice import CheckpointChoice
from components.checkpoint.copy_out import check_target
from components.checkpoint.local_copies import LocalCopies
from components.checkpoint.metadata import (
    CheckpointKind,
    RunProgress,
    name_of,
    newest_checkpoint,
    tokens_of,
)
from components.checkpoint.retention import Policy, drop_after, replace_progress
from components.checkpoint.saving import FinishedCheckpoint, HostBuffers, Saver
from components.config.children import needed_tokens
from components.config.fingerprint import compute_fingerprint
from components.config.phases import fresh_step_of
from components.config.schema.sections import Checkpoint
from components.distributed.collectives import by_first
from components.distributed.node_tree import make_node_tree
from components.errors import RecipeError
from components.run.disk import Patience
from components.run.event_log import EventLog
from components.train.callbacks.local_copies import make_local_copies
from components.train.callbacks.run_metrics import RunMetrics
from components.train.module import Pretraining

Cause = Literal["due", "stopping"]


@dataclass(kw_only=True, eq=False)
class Checkpoints(Callback):
    """Callback that saves checkpoints at each cadence, at the end, and before a stop."""

    folder: Path
    event_log: EventLog
    metrics: RunMetrics
    settings: Checkpoint
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    saver: Saver = field(init=False, repr=False)  # set in `on_fit_start`
    local: LocalCopies | None = field(default=None, init=False, repr=False)
    loaded: dict[str, Any] = field(default_factory=dict, init=False)  # source and load time
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def on_fit_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Resume from the newest local copies, or else from the newest whole checkpoint.

        Wait for the checkpoint folder, which every run has: otherwise the run would start from
        scratch. Raises RecipeError after the time that a save would wait.
        """
        by_first(lambda: self._patience()(self.folder, self.folder.stat))
        fingerprint, began = compute_fingerprint(pl_module.recipe), time.perf_counter()
        source = "local"
        if (progress := self._load_local(pl_module)) is None:
            source, progress = "checkpoints", self._load_newest(pl_module, fingerprint)
        if progress is not None:
            pl_module.progress = progress
            pl_module.engine.load_scale_state(progress.loss_scale)
            if progress.guard is not None:
                pl_module.guard.load_state(progress.guard)
            seconds = time.perf_counter() - began
            self.loaded = {"source": source, "load_seconds": seconds}
        self.saver = self._make_saver(pl_module, fingerprint)
        self._closing.callback(self.saver.close)

    def _load_local(self, module: Pretraining) -> RunProgress | None:
        """Load the nodes' local copies if they are newer than any checkpoint."""
        settings = self.settings.local
        if isinstance(settings, str):
            return None
        self.local = make_local_copies(module, settings, self.folder.parent)
        self._closing.callback(self.local.close)
        newest = by_first(lambda: newest_checkpoint(self.folder))
        newest_copies = self.local.find_newest(after_tokens=tokens_of(newest) if newest else 0)
        return None if newest_copies is None else self.local.load_generation(newest_copies)

    def _load_newest(self, module: Pretraining, fingerprint: str) -> RunProgress | None:
        chosen = loading.load_newest(
            self.folder,
            module.engine.state,
            fingerprint=fingerprint,
            fresh_step=fresh_step_of(module.recipe),
        )
        if chosen is None:
            if module.recipe.start is not None:
                problem = "the checkpoint that this run starts from is not in its folder"
                remedy = "submit the run again, or resume it on its machine: both put it there"
                raise RecipeError(str(self.folder), problem, remedy)
            return None
        for error in chosen.damaged:
            self.say(f"resuming from {chosen.checkpoint}: {error.path} {error.problem}")
        self._note_damaged(chosen)
        return chosen.marker.progress

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        if self.saver.has_failed:
            # At the next step all ranks agree to stop, and then wait for the saver.
            pl_module.stop_requested = True
        self._note(self.saver.poll_finished(), "due")
        weights, kinds = self.settings.weights_every_tokens, list[CheckpointKind]()
        if pl_module.is_due(self.settings.every_tokens) or pl_module.stopping:
            kinds.append("tokens")
        if weights != "none" and pl_module.is_due(weights):
            kinds.append("weights")
        if kinds:
            self.start_save(pl_module, kinds, "stopping" if pl_module.stopping else "due")
        if self.local and pl_module.is_local_due and not pl_module.stopping:
            self._copy_locally(self.local, pl_module.progress)
        if pl_module.stopping:
            pl_module.trainer.should_stop = True

    def _copy_locally(self, local: LocalCopies, progress: RunProgress) -> None:
        if problem := local.start_save(progress):
            self.say(f"local copies failed before step {progress.step}: {problem}")

    def start_save(
        self, module: Pretraining, kinds: Sequence[CheckpointKind], cause: Cause
    ) -> None:
        """Start checkpoints of the current state. Wait for them if the run stops."""
        state, progress = module.engine.state, module.progress
        loss = self.metrics.held_out_loss(progress.tokens)
        self._note(
            self.saver.start_save(state, progress, kinds=kinds, held_out_loss=loss), "due"
        )
        if cause == "stopping":
            self._note(self.saver.wait_for_save(), cause)

    def go_back(self, module: Pretraining, tokens: int) -> RunProgress | None:
        """Load the newest whole checkpoint of at most ``tokens``, after pending saves."""
        self._note(self.saver.wait_for_save(), "due")
        if self.local:
            self.local.remove_own_files()  # local copies are from steps to undo
        if (chosen := loading.choose_up_to(self.folder, tokens)) is None:
            return None
        self._note_damaged(chosen)
        return loading.load_checkpoint(
            chosen.checkpoint,
            chosen.marker,
            module.engine.state,
            fingerprint=compute_fingerprint(module.recipe),
            fresh_step=fresh_step_of(module.recipe),
        )

    def resume_from_here(self, progress: RunProgress) -> list[str]:
        """Make a restart resume from here, too: update the marker, remove later checkpoints."""
        target = self.folder / name_of("tokens", progress.tokens)

        def replace_newest() -> list[str]:
            replace_progress(target, progress)
            return drop_after(target)

        return by_first(lambda: self._patience()(target, replace_newest))

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._note(self.saver.wait_for_save(), "due")
        if self.local:
            self.local.remove_all_files()  # the last checkpoint is equally new
        self._closing.close()

    def on_exception(
        self, trainer: Trainer, pl_module: Pretraining, exception: BaseException
    ) -> None:
        """Wait for a save in progress, unless the user has pressed Ctrl-C twice."""
        if not isinstance(exception, KeyboardInterrupt):
            self._closing.close()

    def _note(self, finished: list[FinishedCheckpoint], cause: Cause) -> None:
        """Log finished checkpoints. Entries of later steps may precede them there."""
        for checkpoint in finished:
            evidence = asdict(checkpoint) | {"folder": str(checkpoint.folder)}
            del evidence["progress"]
            seconds = evidence.pop("stall_seconds")
            self.event_log.write_event(
                "checkpoint", checkpoint.progress, cause, evidence, seconds=seconds
            )

    def _note_damaged(self, chosen: CheckpointChoice) -> None:
        cause = "a newer checkpoint is damaged"
        for error in chosen.damaged:
            evidence = {"path": error.path, "problem": error.problem}
            self.event_log.write_event("damaged", chosen.marker.progress, cause, evidence)

    def _patience(self) -> Patience:
        return Patience(seconds=self.settings.retry_seconds, stopped=self.stopped)

    def _make_saver(self, module: Pretraining, fingerprint: str) -> Saver:
        settings = self.settings
        copy_to = None if settings.copy_to == "none" else Path(settings.copy_to)
        if copy_to is not None:
            by_first(lambda: check_target(copy_to))
        timeout = default_pg_timeout + timedelta(seconds=settings.retry_seconds)
        return Saver(
            folder=self.folder,
            fingerprint=fingerprint,
            group=make_node_tree(
                ranks_per_node=module.recipe.cluster.devices_per_node, timeout=timeout
            ),
            stager=HostBuffers(module.device) if settings.asynchronous else None,
            policy=Policy(
                last=settings.keep,
                every_tokens=settings.keep_every_tokens,
                best=settings.keep_best,
                needed=needed_tokens(module.recipe.whole_run),
            ),
            files=settings.files,
            retry_seconds=settings.retry_seconds,
            copy_to=copy_to,
            stopped=self.stopped,
        )
