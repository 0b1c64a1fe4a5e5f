"""Faults on request: what a run does about them is seen before a machine asks for it.

A fault strikes one rank before one step, once in the life of a run: it is noted in the run
folder first, so that a restart, or a run that went back, does not meet it again.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from components.config.schema.guards import Fault
from components.fault_tolerance import faults
from components.run.event_log import EventLog


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a fault may touch of its rank.

    ``batch`` is what the rank reads in the step, (microbatches, sequences, length + 1);
    ``stages`` are its parts of the model, ``checkpoints`` the folder that the run saves into.
    """

    checkpoints: Path
    batch: Tensor
    stages: Sequence[nn.Module]


class FaultInjector:
    """Fire the faults of a recipe, those of this ``rank``.

    `faults` has a function ``NAME(fault, reach)`` for fault NAME.
    Each rank writes to the journal itself, since the first may be the one that is struck.
    """

    def __init__(self, *, faults: Sequence[Fault], folder: Path, rank: int) -> None:
        self._faults = [fault for fault in faults if fault.rank == rank]
        self._folder = folder
        self._journal = EventLog(file=folder / "journal.jsonl", writes=True, retry_seconds=0.0)

    def before_step(self, step: int, tokens: int, reach: Reach) -> None:
        """Fire what is due before ``step``, the number of the step about to be taken."""
        for fault in self._faults:
            if fault.step == step and self._is_first_time(fault):
                self._journal.note(
                    "rehearsal",
                    step=step - 1,
                    tokens=tokens,
                    cause=f"{fault.fault} was asked for",
                    seconds=0.0,
                    evidence=fault.model_dump(mode="json"),
                )
                getattr(faults, fault.fault)(fault, reach)

    def _is_first_time(self, fault: Fault) -> bool:
        """Note the fault on disk; whoever finds the note there leaves it be."""
        folder = self._folder / "rehearsed"
        folder.mkdir(exist_ok=True)
        note = folder / f"{fault.fault}-rank-{fault.rank}-step-{fault.step}"
        try:
            descriptor = os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.fsync(descriptor)
        os.close(descriptor)
        return True
