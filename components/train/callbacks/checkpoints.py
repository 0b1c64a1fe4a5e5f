"""Checkpoint callback: when checkpoints are saved and loaded."""

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
    Kind,
    RunProgress,
    name_of,
    newest_checkpoint,
    tokens_of,
)
from components.checkpoint.retention import Policy, amend, drop_after
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
    """Save at every cadence that a step crosses, at the end, and before stopping."""

    folder: Path
    journal: EventLog
    metrics: RunMetrics
    settings: Checkpoint
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    saver: Saver = field(init=False, repr=False)  # once the run has begun
    local: LocalCopies | None = field(default=None, init=False, repr=False)
    loaded: dict[str, Any] = field(default_factory=dict, init=False)  # from where, how fast
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def on_fit_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Go on from the newest local copies, or else from the newest whole checkpoint.

        Every run has the folder: a run that did not wait for it would begin anew.

        Raises:
            RecipeError: it is away for longer than a save would wait.
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
                pl_module.guard.load(progress.guard)
            seconds = time.perf_counter() - began
            self.loaded = {"source": source, "load_seconds": seconds}
        self.saver = self._make_saver(pl_module, fingerprint)
        self._closing.callback(self.saver.close)

    def _load_local(self, module: Pretraining) -> RunProgress | None:
        """Load what nodes have kept, where that is newer than any checkpoint."""
        settings = self.settings.local
        if isinstance(settings, str):
            return None
        self.local = make_local_copies(module, settings, self.folder.parent)
        self._closing.callback(self.local.close)
        newest = by_first(lambda: newest_checkpoint(self.folder))
        found = self.local.newest(after_tokens=tokens_of(newest) if newest else 0)
        return None if found is None else self.local.load(found)

    def _load_newest(self, module: Pretraining, fingerprint: str) -> RunProgress | None:
        chosen = loading.load_newest(
            self.folder,
            module.engine.state,
            fingerprint=fingerprint,
            fresh_step=fresh_step_of(module.recipe),
        )
        if chosen is None:
            if module.recipe.start is not None:
                problem = "the checkpoint that this run begins with is not in its folder"
                remedy = (
                    "submit it again, or resume it on its own machine: either puts it there"
                )
                raise RecipeError(str(self.folder), problem, remedy)
            return None
        for one in chosen.damaged:
            self.say(f"going on from {chosen.checkpoint}: {one.path} {one.problem}")
        self._note_damaged(chosen)
        return chosen.marker.progress

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was not taken
            return
        if self.saver.has_failed:
            pl_module.stop_asked = (
                True  # all ranks hear of it in the next step, and wait for it
            )
        self._note(self.saver.poll(), "due")
        weights, kinds = self.settings.weights_every_tokens, list[Kind]()
        if pl_module.is_due(self.settings.every_tokens) or pl_module.stopping:
            kinds.append("tokens")
        if weights != "none" and pl_module.is_due(weights):
            kinds.append("weights")
        if kinds:
            self.save(pl_module, kinds, "stopping" if pl_module.stopping else "due")
        if self.local and pl_module.is_local_due and not pl_module.stopping:
            self._copy_locally(self.local, pl_module.progress)
        if pl_module.stopping:
            pl_module.trainer.should_stop = True

    def _copy_locally(self, local: LocalCopies, progress: RunProgress) -> None:
        if problem := local.save(progress):
            self.say(f"the local copies before those of step {progress.step} failed: {problem}")

    def save(self, module: Pretraining, kinds: Sequence[Kind], cause: Cause) -> None:
        """Begin checkpoints of where the run is; wait for them where it stops here."""
        state, progress = module.engine.state, module.progress
        loss = self.metrics.held_out_loss(progress.tokens)
        self._note(self.saver.save(state, progress, kinds=kinds, held_out_loss=loss), "due")
        if cause == "stopping":
            self._note(self.saver.wait(), cause)

    def go_back(self, module: Pretraining, tokens: int) -> RunProgress | None:
        """Load the newest whole checkpoint of at most ``tokens``, once the last is written."""
        self._note(self.saver.wait(), "due")
        if self.local:
            self.local.forget()  # they are of the steps that are undone
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

    def claim(self, progress: RunProgress) -> list[str]:
        """Let a restart go on from here too: ``progress`` is amended, what is later removed."""
        target = self.folder / name_of("tokens", progress.tokens)

        def amended() -> list[str]:
            amend(target, progress)
            return drop_after(target)

        return by_first(lambda: self._patience()(target, amended))

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._note(self.saver.wait(), "due")
        if self.local:
            self.local.remove()  # the last checkpoint is as new
        self._closing.close()

    def on_exception(
        self, trainer: Trainer, pl_module: Pretraining, exception: BaseException
    ) -> None:
        """Let a save end, unless the user has pressed Ctrl-C twice."""
        if not isinstance(exception, KeyboardInterrupt):
            self._closing.close()

    def _note(self, finished: list[FinishedCheckpoint], cause: Cause) -> None:
        """Report of checkpoints that are whole by now; later steps may stand before them."""
        for one in finished:
            evidence = asdict(one) | {"folder": str(one.folder)}
            del evidence["progress"]
            seconds = evidence.pop("stall_seconds")
            self.journal.note("checkpoint", one.progress, cause, evidence, seconds=seconds)

    def _note_damaged(self, chosen: CheckpointChoice) -> None:
        cause = "a newer checkpoint is not whole"
        for one in chosen.damaged:
            evidence = {"path": one.path, "problem": one.problem}
            self.journal.note("damaged", chosen.marker.progress, cause, evidence)

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
                needed=needed_tokens(module.recipe.whole),
            ),
            files=settings.files,
            retry_seconds=settings.retry_seconds,
            copy_to=copy_to,
            stopped=self.stopped,
        )
