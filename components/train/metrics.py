"""The measurements of a run, ``metrics.jsonl`` and TensorBoard: steps and held-out losses."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from lightning.pytorch.loggers import TensorBoardLogger

from components.checkpoint.marker import Progress
from components.life.journal import append_line, read_lines
from components.train.callback import RunCallback
from components.train.module import Pretraining


class Metrics(RunCallback):
    """Append to ``metrics.jsonl`` on the first rank; other ranks write nothing."""

    def __init__(self, *, file: Path, logger: TensorBoardLogger | None) -> None:
        self._file = file
        self._logger = logger
        self.held_out_losses: list[tuple[int, float, dict[str, float]]] = []

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

    def held_out(self, progress: Progress, by_source: dict[str, float], seconds: float) -> None:
        """Note an evaluation that took ``seconds``."""
        mean = fmean(by_source.values())
        self.held_out_losses.append((progress.tokens, mean, by_source))
        entry = {"step": progress.step, "tokens": progress.tokens, "loss": mean}
        self._append("held_out", entry | {"by_source": by_source, "seconds": seconds})
        self._plot({"held_out": mean}, progress.step)

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the loss that was taken after so many tokens, if it was then."""
        return next((loss for at, loss, _ in self.held_out_losses if at == tokens), None)

    def go_back(self, progress: Progress) -> None:
        """Forget the evaluations after ``progress``; their lines stay in the file."""
        self.held_out_losses = [
            entry for entry in self.held_out_losses if entry[0] <= progress.tokens
        ]

    def _losses_up_to(self, progress: Progress) -> list[tuple[int, float, dict[str, float]]]:
        """Read the evaluations again; of one that was repeated, the last counts."""
        found = {
            entry["tokens"]: (entry["loss"], entry["by_source"])
            for entry in read_lines(self._file)
            if entry["kind"] == "held_out" and entry["step"] <= progress.step
        }
        return [(tokens, *found[tokens]) for tokens in sorted(found)]

    def _append(self, kind: str, entry: Mapping[str, object]) -> None:
        if self._logger is not None:
            append_line(self._file, {"kind": kind, "time": time.time(), **entry}, sync=False)

    def _plot(self, values: Mapping[str, float], step: int) -> None:
        if self._logger is not None:
            self._logger.log_metrics(dict(values), step=step)
