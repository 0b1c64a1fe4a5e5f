"""Training callback hooks; lifecycle events of a run; garbage collection; faults on request."""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from components.config.schema.monitoring import Fault
from components.distributed.collectives import together
from components.distributed.devices import emulation_of
from components.fault_tolerance.faults import FaultInjector, Reach
from components.fault_tolerance.guards import StepVerdict
from components.run.event_log import EventLog, job_name, node_name
from components.run.folder import RunFolder
from components.run.history import MEASURED_UNTIL, lines_from_end
from components.train.module import Pretraining


class RunCallback(Callback):
    """Pass Lightning's hooks on; a callback overrides the moments that it needs."""

    def on_load(self, module: Pretraining) -> None:
        """Once the module is built, to put weights and clock in place."""

    def on_begin(self, module: Pretraining) -> None:
        """Before the first step that this process computes, weights and clock in place."""

    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        """Before each step, which will read ``batch`` (microbatches, sequences, length + 1)."""

    def on_bad_step(self, module: Pretraining, verdict: StepVerdict) -> None:
        """After a step that was not taken, in the order of the callbacks."""

    def on_step(self, module: Pretraining) -> None:
        """After each step, when ``module.last`` and ``module.progress`` are of that step."""

    def on_end(self, module: Pretraining) -> None:
        """When training has ended, unless by an error."""

    def on_close(self) -> None:
        """When training ends, for whatever reason."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_load(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_begin(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.before_step(pl_module, batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if pl_module.verdict is None:
            self.on_step(pl_module)
        else:
            self.on_bad_step(pl_module, pl_module.verdict)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_end(pl_module)
        self.on_close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self.on_close()


@dataclass(kw_only=True, eq=False)
class Story(RunCallback):
    """Note the start or resume of each process group, what changed before it, and its end.

    ``began`` is the clock (`time.perf_counter`) when the ranks were asked to train; ``loaded``
    says from where a run goes on. Let it be the first callback, so that a start ends before the
    first evaluation begins.
    """

    folder: RunFolder
    journal: EventLog
    began: float
    loaded: Callable[[], Mapping[str, Any]]

    def on_begin(self, module: Pretraining) -> None:
        progress, note = module.progress, self.journal.note
        nodes = together(lambda: node_name(os.environ))
        if not self.journal.writes:
            return
        last = next(lines_from_end(self.folder.metrics), {})
        seconds = time.perf_counter() - self.began
        where = {
            "ranks": module.recipe.cluster.ranks,
            "nodes": list(dict.fromkeys(nodes)),
            "job": job_name(os.environ),
            "float8": emulation_of(module.recipe, module.device.type),
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

    def on_end(self, module: Pretraining) -> None:
        asked = "a signal or the stop file asked for it"
        if module.stopping:
            self.journal.note("stop", module.progress, asked, {})
        elif module.progress.step < module.recipe.derived.steps:
            self.journal.note("stop", module.progress, "a phase of the run ends here", {})
        else:
            self.journal.note("end", module.progress, "the budget is spent", {})


class Rehearsing(RunCallback):
    """Fire the faults of this ``rank`` before the steps that the recipe names."""

    def __init__(self, *, folder: RunFolder, faults: Sequence[Fault], rank: int) -> None:
        self._injector = FaultInjector(faults=faults, folder=folder.path, rank=rank)
        self._folder = folder

    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        module.engine.settle()  # a weight under way would hide what is done to it
        reach = Reach(checkpoints=self._folder.checkpoints, batch=batch, stages=module.decoders)
        self._injector.before_step(module.progress, reach)


@dataclass(kw_only=True, eq=False)
class GarbageSchedule(RunCallback):
    """Collect Python's garbage (``gc``) every ``every_steps`` steps, and nothing in between.

    Its own rule collects whenever a rank has made enough objects, each at another moment, and
    all others wait for it in the next collective (torchtitan's ``gc_freq``). What is there
    before the first step is looked at once, and no more after that.
    """

    every_steps: int
    _was_enabled: bool | None = field(default=None, init=False)

    def on_begin(self, module: Pretraining) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()

    def on_step(self, module: Pretraining) -> None:
        if module.progress.step % self.every_steps == 0:
            gc.collect()

    def on_close(self) -> None:
        if self._was_enabled is None:  # the run failed before it began
            return
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        self._was_enabled = None
