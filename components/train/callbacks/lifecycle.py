"""Lifecycle events of a run: its start or resume, settings that changed, and its end."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, Trainer

from components.distributed.collectives import together
from components.distributed.devices import emulation_of
from components.engine.deepspeed_engine import DeepSpeedEngine
from components.run.event_log import EventLog, job_name, node_name
from components.run.folder import RunFolder
from components.run.history import MEASURED_UNTIL, lines_from_end
from components.train.module import Pretraining


@dataclass(kw_only=True, eq=False)
class LifecycleLogger(Callback):
    """Note the start or resume of each process group, what changed before it, and its end.

    ``began`` is the clock (`time.perf_counter`) when the ranks were asked to train; ``loaded``
    says from where a run goes on. Let it be the first callback, so that a start ends before the
    first evaluation begins.
    """

    folder: RunFolder
    journal: EventLog
    began: float
    loaded: Callable[[], Mapping[str, Any]]

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        progress, note = pl_module.progress, self.journal.note
        nodes = together(lambda: node_name(os.environ))
        if not self.journal.writes:
            return
        if isinstance(pl_module.engine, DeepSpeedEngine):
            self.folder.write_json("deepspeed.json", pl_module.engine.config)
        last = next(lines_from_end(self.folder.metrics), {})
        seconds = time.perf_counter() - self.began
        where = {
            "ranks": pl_module.recipe.cluster.ranks,
            "nodes": list(dict.fromkeys(nodes)),
            "job": job_name(os.environ),
            "float8": emulation_of(pl_module.recipe, pl_module.device.type),
            MEASURED_UNTIL: last.get("time"),
        }
        where = {key: value for key, value in where.items() if value is not None}
        if progress.step == 0:
            note("start", progress, "a run begins", where, seconds=seconds)
        else:
            where |= self.loaded()
            note("resume", progress, "a checkpoint was found", where, seconds=seconds)
        if changed := self.folder.changes_at(progress.step):
            note("changed_setting", progress, "the user set other values", changed)

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        asked = "a signal or the stop file asked for it"
        if pl_module.stopping:
            self.journal.note("stop", pl_module.progress, asked, {})
        elif pl_module.progress.step < pl_module.recipe.derived.steps:
            self.journal.note("stop", pl_module.progress, "a phase of the run ends here", {})
        else:
            self.journal.note("end", pl_module.progress, "the budget is spent", {})
