"""Loggers of a run: records in ``metrics.jsonl``, curves for TensorBoard."""

import logging
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from components.run.disk import Patience
from components.run.event_log import ClockReading, append_line, run_time
from components.run.folder import RunFolder
from components.run.history import lines_from_end
from components.train.step_metrics import StepRecord

# The first bytes of records that a run may write at every step.
STEP_LINES = (b'{"kind": "step"', b'{"kind": "logged"')
MOST_SPEEDS = 10_000  # steps whose median is the speed of a run
# What records have is not logged again.
RECORDED = {field.name for field in fields(StepRecord)} | {
    *("held_out", "held_out_unweighted", "device_joules", "epoch"),
}

_log = logging.getLogger(__name__)
_thread_ended = threading.excepthook


class MetricsFile(Logger):
    """Append records to ``file`` on the first rank; other ranks write nothing.

    Where the disk is full or away the run waits for ``retry_seconds``, unless ``stopped``.
    What else a callback logs (``self.log``) is a record of the kind ``logged``.
    """

    def __init__(
        self,
        *,
        file: Path,
        writes: bool,
        retry_seconds: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.file, self.writes = file, writes
        self._patience = Patience(seconds=retry_seconds, stopped=stopped)
        self._at: ClockReading | None = None

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Write nothing: the run folder has the recipe."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        other = {name: value for name, value in metrics.items() if name not in RECORDED}
        if other and self._at is not None:
            self.record("logged", self._at, other)

    def record(self, kind: str, at: ClockReading, figures: Mapping[str, object]) -> None:
        """Append a record of what was measured ``at`` a step."""
        self._at = at
        if not self.writes:
            return
        now = run_time(self.file.parent)
        line = {"kind": kind, "time": now, "step": at.step, "tokens": at.tokens, **figures}
        self._patience(self.file, lambda: append_line(self.file, line, sync=False))

    def earlier_records(self) -> Iterator[dict[str, Any]]:
        """Yield what earlier processes recorded, but for steps, newest first."""
        return lines_from_end(self.file, skipped=STEP_LINES) if self.writes else iter(())


class TensorBoardCurves(TensorBoardLogger):
    """Write curves into the run folder; a full disk costs points and stops no run.

    TensorBoard writes in a thread that ends at its first error, and raises that error at the
    next call. What it had not written by then is lost; a new file takes what follows.
    """

    def __init__(self, *, folder: RunFolder) -> None:
        import torch.utils.tensorboard  # noqa: F401, optional: Lightning imports it at the first point

        super().__init__(folder.path, name="tensorboard", version="")
        self._folder = folder.path / "tensorboard"
        threading.excepthook = _drop_writer_errors

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        try:
            super().log_metrics(dict(metrics), step)
        except (OSError, ValueError) as error:
            cause = error.__cause__ or error
            if not isinstance(cause, OSError):
                raise
            self._drop(cause)

    @rank_zero_only
    def save(self) -> None:
        """Write nothing: events are written by their own thread."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        try:
            super().finalize(status)
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self._experiment = None
        _log.warning("%s: %s; some points are missing there", self._folder, error.strerror)


def _drop_writer_errors(failure: threading.ExceptHookArgs) -> None:
    """Print no traceback of TensorBoard's thread: its error is raised at the next call."""
    is_writer = type(failure.thread).__name__ == "_AsyncWriterThread"
    if not (is_writer and isinstance(failure.exc_value, OSError)):
        _thread_ended(failure)


def recent_speeds(file: Path, *, after_step: int) -> list[float]:
    """Read the tokens per second of the last steps that followed ``after_step``."""
    steps = (one for one in lines_from_end(file) if one["kind"] == "step")
    of_phase = takewhile(lambda one: one["step"] > after_step, steps)
    return [one["tokens_per_second"] for one in islice(of_phase, MOST_SPEEDS)]
