"""How a run begins, goes on and ends, told to its journal."""

import os
import time
from collections.abc import Mapping

from lightning.pytorch import LightningModule, Trainer

from components.checkpoint.agreement import together
from components.life.journal import Journal, Kind
from components.life.place import job_name, node_name
from components.train.callback import RunCallback
from components.train.devices import emulation_of
from components.train.module import Pretraining
from components.train.run_folder import RunFolder


class Story(RunCallback):
    """Note the start or resume of each process group, what changed before it, and its end.

    ``began`` is the clock (`time.perf_counter`) when the ranks were asked to train. Let it be
    the first callback, so that a start ends before the first evaluation begins.
    """

    def __init__(self, *, folder: RunFolder, journal: Journal, began: float) -> None:
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
