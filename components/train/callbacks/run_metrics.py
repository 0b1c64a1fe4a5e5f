"""Metrics of a run: steps, held-out losses and energy, recorded in ``metrics.jsonl``."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain, islice, takewhile
from typing import Any

from lightning.pytorch import Callback, Trainer

from components.checkpoint.metadata import RunProgress
from components.energy.counters import NOTHING, EnergyReading
from components.run.history import stream_lines
from components.train.held_out import LAST_QUARTER, Evaluation, weighted_mean
from components.train.loggers import MetricsFile
from components.train.module import Pretraining

MOST_WITHOUT_ENERGY = 256  # lines to search: there is an energy record every few steps


@dataclass(kw_only=True, eq=False)
class RunMetrics(Callback):
    """Callback that records steps, validations and energy, for the file and the summary."""

    file: MetricsFile

    def __post_init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        # The energy of undone steps counts, too.
        self.energy_used = {"devices": NOTHING, "hosts": NOTHING}
        late = islice(self.file.earlier_records(), MOST_WITHOUT_ENERGY)
        if (
            energy := next((line for line in late if line["kind"] == "energy"), None)
        ) is not None:
            self.energy_used = {
                name: EnergyReading.from_json(energy[name]) for name in self.energy_used
            }
        self._energy_before = self.energy_used

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Read the first evaluation and those in the last quarter, for the summary, on rank 0.

        The file is read from its end. Of repeated evaluations, the last one counts.
        """
        if not self.file.writes or not pl_module.progress.step:
            return
        by_step: dict[int, Evaluation] = {}

        def is_late(line: Mapping[str, Any]) -> bool:
            newest = next(iter(by_step.values()), None)
            return newest is None or line.get("tokens", 0) >= LAST_QUARTER * newest.tokens

        begin = (record for _, record in stream_lines(self.file.file, []))
        first = takewhile(lambda line: line.get("step") == 0, begin)
        for line in chain(takewhile(is_late, self.file.earlier_records()), first):
            if line["kind"] == "held_out" and line["step"] <= pl_module.progress.step:
                evaluation = Evaluation(line["step"], line["tokens"], line["by_source"])
                by_step.setdefault(evaluation.step, evaluation)
        self.evaluations = [by_step[step] for step in sorted(by_step)]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        assert pl_module.last is not None
        figures = {
            key: value for key, value in asdict(pl_module.last).items() if value is not None
        }
        self.file.append_record("step", pl_module.last, figures)
        del figures["step"], figures["samples_digest"]
        for logger in trainer.loggers:
            logger.log_metrics(figures, pl_module.last.step)

    def on_validation_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        seconds = time.perf_counter() - self._validation_began
        progress = pl_module.progress
        shares = pl_module.data_module.batches.shares_after(progress.step)
        self.record_held_out(progress, pl_module.held_out, shares, seconds)

    def record_held_out(
        self,
        progress: RunProgress,
        by_source: Mapping[str, float],
        shares: Mapping[str, float],
        seconds: float,
    ) -> None:
        """Record an evaluation that took ``seconds``. ``shares`` is the mixture at its step."""
        evaluation = Evaluation(progress.step, progress.tokens, by_source)
        self.evaluations.append(evaluation)
        figures = {
            "loss": evaluation.mean_loss,
            "weighted_loss": weighted_mean(by_source, shares),
            "by_source": by_source,
            "shares": shares,
            "seconds": seconds,
        }
        self.file.append_record("held_out", progress, figures)

    def record_energy(
        self, progress: RunProgress, devices: EnergyReading, hosts: EnergyReading
    ) -> None:
        """Record the energy of this process plus that used by earlier processes of the run."""
        counted = {"devices": devices, "hosts": hosts}
        used = {name: self._energy_before[name] + counts for name, counts in counted.items()}
        self.energy_used = used
        self.file.append_record(
            "energy", progress, {name: reading.as_json() for name, reading in used.items()}
        )

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the plain mean over sources at ``tokens``: it can compare phases."""
        return next(
            (
                evaluation.mean_loss
                for evaluation in self.evaluations
                if evaluation.tokens == tokens
            ),
            None,
        )

    def go_back(self, progress: RunProgress) -> None:
        """Forget the evaluations after ``progress``. Their lines stay in the file."""
        self.evaluations = [
            evaluation
            for evaluation in self.evaluations
            if evaluation.tokens <= progress.tokens
        ]
