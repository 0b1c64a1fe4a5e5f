"""Metrics logger: steps, losses, energy into ``metrics.jsonl`` and TensorBoard."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from components.checkpoint.metadata import RunProgress
from components.energy.counters import NOTHING, EnergyReading
from components.run.disk import Patience
from components.run.event_log import append_line
from components.run.lines import read_lines
from components.train.callbacks.hooks import RunCallback
from components.train.module import Pretraining

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


class Metrics(RunCallback):
    """Append to ``metrics.jsonl`` on the first rank; other ranks write nothing.

    Where the disk is full or away the run waits for ``retry_seconds``, unless ``stopped``.
    """

    def __init__(
        self,
        *,
        file: Path,
        curves: Curves | None,
        retry_seconds: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file = file
        self._patience = Patience(seconds=retry_seconds, stopped=stopped)
        self._curves = curves
        self.held_out_losses: list[tuple[int, float, dict[str, float]]] = []
        self.energy_used = self._energy_before = _energy_so_far(file)

    def on_begin(self, module: Pretraining) -> None:
        if module.progress.step:
            self.held_out_losses = self._losses_up_to(module.progress)

    def on_step(self, module: Pretraining) -> None:
        assert module.last is not None
        record = asdict(module.last)
        self._append("step", record)
        self._plot(
            {name: record[name] for name in record if name not in {"step", "samples_digest"}},
            record["step"],
        )

    def on_close(self) -> None:
        if self._curves is not None:
            self._curves.close()

    def held_out(
        self, progress: RunProgress, by_source: dict[str, float], seconds: float
    ) -> None:
        """Note an evaluation that took ``seconds``."""
        mean = fmean(by_source.values())
        self.held_out_losses.append((progress.tokens, mean, by_source))
        entry = {"step": progress.step, "tokens": progress.tokens, "loss": mean}
        self._append("held_out", entry | {"by_source": by_source, "seconds": seconds})
        self._plot({"held_out": mean}, progress.step)

    def energy(
        self, progress: RunProgress, *, devices: EnergyReading, hosts: EnergyReading
    ) -> None:
        """Note what was counted since this process began; the run's earlier ones' is added."""
        before = self._energy_before
        used = {"devices": before["devices"] + devices, "hosts": before["hosts"] + hosts}
        self.energy_used = used
        entry = {"step": progress.step, "tokens": progress.tokens}
        self._append("energy", entry | {name: one.as_json() for name, one in used.items()})
        if used["devices"].counted_seconds:
            self._plot({"device_joules": used["devices"].joules}, progress.step)

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the loss that was taken after so many tokens, if it was then."""
        return next((loss for at, loss, _ in self.held_out_losses if at == tokens), None)

    def go_back(self, progress: RunProgress) -> None:
        """Forget the evaluations after ``progress``; their lines stay in the file."""
        self.held_out_losses = [
            entry for entry in self.held_out_losses if entry[0] <= progress.tokens
        ]

    def _losses_up_to(self, progress: RunProgress) -> list[tuple[int, float, dict[str, float]]]:
        """Read the evaluations again; of one that was repeated, the last counts."""
        found = {
            entry["tokens"]: (entry["loss"], entry["by_source"])
            for entry in read_lines(self._file)
            if entry["kind"] == "held_out" and entry["step"] <= progress.step
        }
        return [(tokens, *found[tokens]) for tokens in sorted(found)]

    def _append(self, kind: str, entry: Mapping[str, object]) -> None:
        if self._curves is not None:
            line = {"kind": kind, "time": time.time(), **entry}
            self._patience(self._file, lambda: append_line(self._file, line, sync=False))

    def _plot(self, values: Mapping[str, float], step: int) -> None:
        if self._curves is not None:
            self._curves.add(values, step=step)


def _energy_so_far(file: Path) -> dict[str, EnergyReading]:
    """Read what the run has used; what steps used that were thrown away is part of it."""
    used = {"devices": NOTHING, "hosts": NOTHING}
    for entry in read_lines(file):
        if entry["kind"] == "energy":
            used = {name: EnergyReading.from_json(entry[name]) for name in used}
    return used
