"""TensorBoard's copy of the measurements; all that it shows is in ``metrics.jsonl``, too."""

import logging
from collections.abc import Mapping
from pathlib import Path

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # a machine's own packages may lack tensorboard
    SummaryWriter = None  # type: ignore[assignment,misc]  # then nothing is drawn

_log = logging.getLogger(__name__)


class Curves:
    """Write scalars into event files below ``folder``; no run ends for want of them.

    TensorBoard writes in a thread that ends at its first error, and raises that error at the
    next call. What it had not written by then is lost; a new file takes what follows.
    """

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        if SummaryWriter is None:
            _log.warning("no curves: tensorboard is not installed; metrics.jsonl has them all")

    def add(self, values: Mapping[str, float], *, step: int) -> None:
        if SummaryWriter is None:
            return
        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self._folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except OSError as error:
            self._writer = None
            _log.warning("%s: %s; some points are missing there", self._folder, error.strerror)

    def close(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            _log.warning("%s: %s; some points are missing there", self._folder, error.strerror)
