"""Garbage collection on a schedule (``gc``): after the same steps on all ranks.

Python's own rule collects whenever a rank has made enough objects, each at another moment, and
all others wait for it in the next collective (torchtitan's ``gc_freq``).
"""

import gc
from dataclasses import dataclass, field

from components.train.callbacks.hooks import RunCallback
from components.train.module import Pretraining


@dataclass(kw_only=True, eq=False)
class GarbageSchedule(RunCallback):
    """Collect every ``every_steps`` steps, and nothing in between.

    What is there before the first step is looked at once, and no more after that.
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
