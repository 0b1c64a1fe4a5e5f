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

MOST_WITHOUT_ENERGY = 256  # lines: there is one of energy for every few steps


@dataclass(kw_only=True, eq=False)
class RunMetrics(Callback):
    """Record each step, validation and reading of energy; keep what the summary needs."""

    file: MetricsFile

    def __post_init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        # Energy of steps that were undone counts.
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
        """Read the evaluations that the summary at the end needs; rank 0 alone does so.

        They are the first one and those of the last quarter of the tokens, which are read from
        the end of the file. Of one that was repeated, the last counts.
        """
        if not self.file.writes or not pl_module.progress.step:
            return
        found: dict[int, Evaluation] = {}

        def is_late(line: Mapping[str, Any]) -> bool:
            newest = next(iter(found.values()), None)
            return newest is None or line.get("tokens", 0) >= LAST_QUARTER * newest.tokens

        begin = (record for _, record in stream_lines(self.file.file, []))
        first = takewhile(lambda line: line.get("step") == 0, begin)
        for line in chain(takewhile(is_late, self.file.earlier_records()), first):
            if line["kind"] == "held_out" and line["step"] <= pl_module.progress.step:
                evaluation = Evaluation(line["step"], line["tokens"], line["by_source"])
                found.setdefault(evaluation.step, evaluation)
        self.evaluations = [found[step] for step in sorted(found)]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was not taken
            return
        assert pl_module.last is not None
        figures = {key: one for key, one in asdict(pl_module.last).items() if one is not None}
        self.file.record("step", pl_module.last, figures)
        del figures["step"], figures["samples_digest"]
        for logger in trainer.loggers:
            logger.log_metrics(figures, pl_module.last.step)

    def on_validation_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: Pretraining) -> None:
        seconds = time.perf_counter() - self._validation_began
        progress = pl_module.progress
        shares = pl_module.data.batches.shares_after(progress.step)
        self.record_held_out(progress, pl_module.held_out, shares, seconds)

    def record_held_out(
        self,
        progress: RunProgress,
        by_source: Mapping[str, float],
        shares: Mapping[str, float],
        seconds: float,
    ) -> None:
        """Record an evaluation that took ``seconds``; ``shares`` are those drawn with there."""
        taken = Evaluation(progress.step, progress.tokens, by_source)
        self.evaluations.append(taken)
        figures = {
            "loss": taken.mean,
            "weighted_loss": weighted_mean(by_source, shares),
            "by_source": by_source,
            "shares": shares,
            "seconds": seconds,
        }
        self.file.record("held_out", progress, figures)

    def energy(
        self, progress: RunProgress, devices: EnergyReading, hosts: EnergyReading
    ) -> None:
        """Note what was counted since this process began; the run's earlier ones' is added."""
        counted = {"devices": devices, "hosts": hosts}
        used = {name: self._energy_before[name] + one for name, one in counted.items()}
        self.energy_used = used
        self.file.record(
            "energy", progress, {name: one.as_json() for name, one in used.items()}
        )

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the plain mean over sources after so many tokens, if it was taken then.

        It ranks checkpoints of different phases, whose mixtures weigh the sources differently.
        """
        return next((one.mean for one in self.evaluations if one.tokens == tokens), None)

    def go_back(self, progress: RunProgress) -> None:
        """Forget the evaluations after ``progress``; their lines stay in the file."""
        self.evaluations = [one for one in self.evaluations if one.tokens <= progress.tokens]
