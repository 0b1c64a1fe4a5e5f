"""The journal: steps, evaluations, checkpoints, resumes as JSON lines, and TensorBoard."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from lightning.pytorch.loggers import TensorBoardLogger

from components.checkpoint.marker import DamagedCheckpointError, Progress
from components.checkpoint.saving import Finished
from components.train.callback import RunCallback
from components.train.module import Pretraining
from components.train.run_folder import RunFolder


class Journal(RunCallback):
    """Append to ``metrics.jsonl`` on the first rank; other ranks write nothing."""

    def __init__(self, *, file: Path, logger: TensorBoardLogger | None) -> None:
        self._file = file
        self._logger = logger
        self.held_out_losses: list[tuple[int, float, dict[str, float]]] = []

    def on_step(self, module: Pretraining) -> None:
        assert module.last is not None
        record = asdict(module.last)
        self._append("step", record)
        self._plot(
            {name: record[name] for name in record if name not in {"step", "samples_digest"}},
            record["step"],
        )

    def held_out(self, progress: Progress, by_source: dict[str, float]) -> None:
        mean = fmean(by_source.values())
        self.held_out_losses.append((progress.tokens, mean, by_source))
        self._append("held_out", asdict(progress) | {"loss": mean, "by_source": by_source})
        self._plot({"held_out": mean}, progress.step)

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the loss that was taken after so many tokens, if it was then."""
        return next((loss for at, loss, _ in self.held_out_losses if at == tokens), None)

    def checkpoint(self, finished: Finished) -> None:
        """Note a checkpoint once it is whole, which later steps may be before it."""
        figures = asdict(finished)
        progress = figures.pop("progress")
        self._append("checkpoint", progress | figures | {"folder": str(finished.folder)})

    def resume(self, progress: Progress, damaged: Sequence[DamagedCheckpointError]) -> None:
        """Cut off a half-written line, note the resume, and remember earlier evaluations.

        What changed in the recipe at this step, its layout, is noted too: old and new by key.
        So is what was wrong with newer checkpoints.
        """
        whole, _, _ = self._file.read_bytes().rpartition(b"\n")
        lines = whole.splitlines()
        if self._logger is not None:
            os.truncate(self._file, len(whole) + 1)
        entries = [json.loads(line) for line in lines]
        self.held_out_losses = [
            (entry["tokens"], entry["loss"], entry["by_source"])
            for entry in entries
            if entry["kind"] == "held_out" and entry["step"] <= progress.step
        ]
        changed = RunFolder(self._file.parent).changes_at(progress.step)
        problems = [f"{one.path}: {one.problem}" for one in damaged]
        self._append("resume", asdict(progress) | {"changed": changed, "damaged": problems})

    def _append(self, kind: str, entry: Mapping[str, object]) -> None:
        if self._logger is None:
            return
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "time": time.time(), **entry}) + "\n")

    def _plot(self, values: Mapping[str, float], step: int) -> None:
        if self._logger is not None:
            self._logger.log_metrics(dict(values), step=step)
