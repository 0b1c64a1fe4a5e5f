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

# The first bytes of records that may appear at every step.
STEP_LINES = (b'{"kind": "step"', b'{"kind": "logged"')
MOST_SPEEDS = 10_000  # steps in the median speed of a run
# Metrics that other records contain.
RECORDED = {field.name for field in fields(StepRecord)} | {
    *("held_out", "held_out_unweighted", "device_joules", "epoch")
}

_log = logging.getLogger(__name__)
_thread_ended = threading.excepthook


class MetricsFile(Logger):
    """Logger that appends records to ``file`` on the first rank. Other ranks write nothing.

    While the disk is full or unavailable, it retries for ``retry_seconds`` unless ``stopped``.
    Other metrics of callbacks (``self.log``) become records of the kind ``logged``.
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
            self.append_record("logged", self._at, other)

    def append_record(self, kind: str, at: ClockReading, figures: Mapping[str, object]) -> None:
        """Append a record of figures measured ``at`` a step."""
        self._at = at
        if not self.writes:
            return
        now = run_time(self.file.parent)
        line = {"kind": kind, "time": now, "step": at.step, "tokens": at.tokens, **figures}
        self._patience(self.file, lambda: append_line(self.file, line, sync=False))

    def earlier_records(self) -> Iterator[dict[str, Any]]:
        """Yield earlier processes' records, except steps and logged ones, newest first."""
        return lines_from_end(self.file, skipped=STEP_LINES) if self.writes else iter(())


class TensorBoardCurves(TensorBoardLogger):
    """TensorBoard curves in the run folder. A full disk loses points, but the run continues.

    TensorBoard's thread ends at its first error, which the next call raises; a new file
    follows.
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
        """Do nothing: TensorBoard's own thread writes the events."""

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
    """Suppress tracebacks of TensorBoard's thread: the next call raises the error again."""
    is_writer = type(failure.thread).__name__ == "_AsyncWriterThread"
    if not (is_writer and isinstance(failure.exc_value, OSError)):
        _thread_ended(failure)


def recent_speeds(file: Path, *, after_step: int) -> list[float]:
    """Return the tokens per second of the last steps after ``after_step``."""
    steps = (record for record in lines_from_end(file) if record["kind"] == "step")
    of_phase = takewhile(lambda record: record["step"] > after_step, steps)
    return [record["tokens_per_second"] for record in islice(of_phase, MOST_SPEEDS)]
