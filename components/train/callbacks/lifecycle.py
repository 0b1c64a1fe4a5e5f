"""Lifecycle events of a run: its start or resume, settings that changed, and its end."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, Trainer

from components.distributed.collectives import gather_results
from components.distributed.devices import emulation_of
from components.engine.deepspeed_engine import DeepSpeedEngine
from components.run.event_log import EventLog, job_name, node_name
from components.run.folder import RunFolder
from components.run.history import MEASURED_UNTIL, lines_from_end
from components.train.module import Pretraining


@dataclass(kw_only=True, eq=False)
class LifecycleLogger(Callback):
    """Callback that logs the start, resume and end of each process group, and changed settings.

    ``began`` is the `time.perf_counter` when the ranks started, ``loaded`` the source of a
    resumed run. It precedes validation: the first evaluation is not part of the start.
    """

    folder: RunFolder
    event_log: EventLog
    began: float
    loaded: Callable[[], Mapping[str, Any]]

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        progress, note = pl_module.progress, self.event_log.write_event
        nodes = gather_results(lambda: node_name(os.environ))
        if not self.event_log.writes:
            return
        if isinstance(pl_module.engine, DeepSpeedEngine):
            self.folder.write_json("deepspeed.json", pl_module.engine.config)
        last = next(lines_from_end(self.folder.metrics), {})
        seconds = time.perf_counter() - self.began
        evidence = {
            "ranks": pl_module.recipe.cluster.ranks,
            "nodes": list(dict.fromkeys(nodes)),
            "job": job_name(os.environ),
            "float8": emulation_of(pl_module.recipe, pl_module.device.type),
            MEASURED_UNTIL: last.get("time"),
        }
        evidence = {key: value for key, value in evidence.items() if value is not None}
        if progress.step == 0:
            note("start", progress, "a run starts", evidence, seconds=seconds)
        else:
            evidence |= self.loaded()
            note("resume", progress, "a checkpoint was found", evidence, seconds=seconds)
        if changed := self.folder.changes_at(progress.step):
            note("changed_setting", progress, "the user changed values", changed)

    def on_train_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        cause = "requested by a signal or the stop file"
        if pl_module.stopping:
            self.event_log.write_event("stop", pl_module.progress, cause, {})
        elif pl_module.progress.step < pl_module.recipe.derived_numbers.steps:
            self.event_log.write_event(
                "stop", pl_module.progress, "a phase of the run ends", {}
            )
        else:
            self.event_log.write_event("end", pl_module.progress, "the budget is spent", {})
