"""Faults on request, fired between the steps of a run."""

from collections.abc import Sequence

from torch import Tensor

from components.life.rehearsal import Reach, Rehearsal
from components.spec.guard import Fault
from components.train.callback import RunCallback
from components.train.module import Pretraining
from components.train.run_folder import RunFolder


class Rehearsing(RunCallback):
    """Fire the faults of this ``rank`` before the steps that the recipe names."""

    def __init__(self, *, folder: RunFolder, faults: Sequence[Fault], rank: int) -> None:
        self._rehearsal = Rehearsal(faults=faults, folder=folder.path, rank=rank)
        self._folder = folder

    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        progress = module.progress
        reach = Reach(checkpoints=self._folder.checkpoints, batch=batch, stages=module.decoders)
        self._rehearsal.before_step(progress.step + 1, progress.tokens, reach)
