"""Lifecycle events: how a run begins, goes on and ends; faults on request."""

import os
import time
from collections.abc import Mapping, Sequence

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from components.checkpoint.error_sync import together
from components.config.schema.guards import Fault
from components.distributed.devices import emulation_of
from components.fault_tolerance.fault_injection import FaultInjector, Reach
from components.run.event_log import EventLog, Kind, job_name, node_name
from components.run.folder import RunFolder
from components.train.callbacks.hooks import RunCallback
from components.train.module import Pretraining


class Story(RunCallback):
    """Note the start or resume of each process group, what changed before it, and its end.

    ``began`` is the clock (`time.perf_counter`) when the ranks were asked to train. Let it be
    the first callback, so that a start ends before the first evaluation begins.
    """

    def __init__(self, *, folder: RunFolder, journal: EventLog, began: float) -> None:
        self._folder = folder
        self._journal = journal
        self._began = began

    def on_begin(self, module: Pretraining) -> None:
        step, where = module.progress.step, places(module.recipe.cluster.ranks)
        seconds = time.perf_counter() - self._began
        if emulated := emulation_of(module.recipe, module.device.type):
            where["float8"] = emulated
        if step == 0:
            self._note(module, "start", "a run begins", seconds, where)
            return
        self._note(module, "resume", "a checkpoint was found", seconds, where)
        if changed := self._folder.changes_at(step):
            self._note(module, "changed_setting", "the user set other values", 0.0, changed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell how it ended, unless by an error, which does not come here."""
        assert isinstance(pl_module, Pretraining)
        if pl_module.stopping:
            self._note(pl_module, "stop", "a signal or the stop file asked for it", 0.0, {})
        else:
            self._note(pl_module, "end", "the budget is spent", 0.0, {})

    def _note(
        self,
        module: Pretraining,
        kind: Kind,
        cause: str,
        seconds: float,
        evidence: Mapping[str, object],
    ) -> None:
        self._journal.note(
            kind,
            step=module.progress.step,
            tokens=module.progress.tokens,
            cause=cause,
            seconds=seconds,
            evidence=evidence,
        )


def places(ranks: int) -> dict[str, object]:
    """Say how many ``ranks`` begin, on which nodes and in which job; all of them call this."""
    nodes = together(lambda: node_name(os.environ))
    job = job_name(os.environ)
    where = {} if job is None else {"job": job}
    return {"ranks": ranks, "nodes": list(dict.fromkeys(nodes)), **where}


class Rehearsing(RunCallback):
    """Fire the faults of this ``rank`` before the steps that the recipe names."""

    def __init__(self, *, folder: RunFolder, faults: Sequence[Fault], rank: int) -> None:
        self._rehearsal = FaultInjector(faults=faults, folder=folder.path, rank=rank)
        self._folder = folder

    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        progress = module.progress
        reach = Reach(checkpoints=self._folder.checkpoints, batch=batch, stages=module.decoders)
        self._rehearsal.before_step(progress.step + 1, progress.tokens, reach)
