"""Metrics logger: steps, held-out losses, energy into ``metrics.jsonl`` and TensorBoard."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, groupby, islice, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from components.checkpoint.metadata import RunProgress
from components.config.rules.layout import sequence_divisor
from components.data.samples import HeldOutWindows
from components.distributed.mesh import sum_over_ranks
from components.energy.counters import NOTHING, EnergyReading
from components.run.disk import Patience
from components.run.event_log import ClockReading, append_line, run_time
from components.run.history import lines_from_end, stream_lines
from components.train.callbacks.hooks import RunCallback
from components.train.held_out import LAST_QUARTER, Evaluation, weighted_mean
from components.train.module import Pretraining

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # a machine's own packages may lack tensorboard
    SummaryWriter = None  # type: ignore[assignment,misc]  # then nothing is drawn

STEP_LINE = b'{"kind": "step"'  # how the lines begin of which there is one for each step
MOST_SPEEDS = 10_000  # steps whose median is the speed of a run
MOST_WITHOUT_ENERGY = 256  # lines: there is one of energy for every few steps

_log = logging.getLogger(__name__)


_thread_ended = threading.excepthook


def _hear_thread(failure: threading.ExceptHookArgs) -> None:
    """Print no traceback of TensorBoard's thread: its error is raised at the next call."""
    is_writer = type(failure.thread).__name__ == "_AsyncWriterThread"
    if not (is_writer and isinstance(failure.exc_value, OSError)):
        _thread_ended(failure)


class Curves:
    """Write scalars into event files below ``folder``; no run ends for want of them.

    TensorBoard writes in a thread that ends at its first error, and raises that error at the
    next call. What it had not written by then is lost; a new file takes what follows.
    """

    def __init__(self, *, folder: Path) -> None:
        threading.excepthook = _hear_thread
        self._folder = folder
        self._writer: SummaryWriter | None = None
        if SummaryWriter is None:
            _log.warning("no curves: tensorboard is not installed; metrics.jsonl has them all")

    def add(self, values: Mapping[str, float], *, step: int) -> None:
        if SummaryWriter is None:
            return
        with self._lossy():
            if self._writer is None:
                self._writer = SummaryWriter(str(self._folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            with self._lossy():
                self._writer.close()

    @contextmanager
    def _lossy(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            _log.warning("%s: %s; some points are missing there", self._folder, error.strerror)


@dataclass(kw_only=True, eq=False)
class Metrics(RunCallback):
    """Append to ``metrics.jsonl`` on the first rank; other ranks write nothing.

    Where the disk is full or away the run waits for ``retry_seconds``, unless ``stopped``.
    """

    file: Path
    curves: Curves | None
    retry_seconds: float
    stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._patience = Patience(seconds=self.retry_seconds, stopped=self.stopped)
        self.evaluations: list[Evaluation] = []
        # What steps used that were thrown away is part of it.
        self.energy_used = {"devices": NOTHING, "hosts": NOTHING}
        late = islice(self._earlier(), MOST_WITHOUT_ENERGY)
        if (energy := next((one for one in late if one["kind"] == "energy"), None)) is not None:
            self.energy_used = {
                name: EnergyReading.from_json(energy[name]) for name in self.energy_used
            }
        self._energy_before = self.energy_used

    def on_begin(self, module: Pretraining) -> None:
        """Read the evaluations that the summary at the end needs; rank 0 alone does so.

        They are the first one and those of the last quarter of the tokens, which are read from
        the end of the file. Of one that was repeated, the last counts.
        """
        if self.curves is None or not module.progress.step:
            return
        found: dict[int, Evaluation] = {}

        def is_late(one: Mapping[str, Any]) -> bool:
            newest = next(iter(found.values()), None)
            return newest is None or one.get("tokens", 0) >= LAST_QUARTER * newest.tokens

        begin = (record for _, record in stream_lines(self.file, []))
        first = takewhile(lambda one: one.get("step") == 0, begin)
        for one in chain(takewhile(is_late, self._earlier()), first):
            if one["kind"] == "held_out" and one["step"] <= module.progress.step:
                evaluation = Evaluation(one["step"], one["tokens"], one["by_source"])
                found.setdefault(evaluation.step, evaluation)
        self.evaluations = [found[one] for one in sorted(found)]

    def _earlier(self) -> Iterator[dict[str, Any]]:
        """Yield what earlier processes wrote, the last first; nothing on other ranks."""
        return iter(()) if self.curves is None else lines_from_end(self.file, skipped=STEP_LINE)

    def on_step(self, module: Pretraining) -> None:
        assert module.last is not None
        figures = {key: one for key, one in asdict(module.last).items() if one is not None}
        curves = figures.copy()
        del curves["step"], curves["samples_digest"]
        self._write("step", module.last, figures, curves)

    def on_close(self) -> None:
        if self.curves is not None:
            self.curves.close()

    def held_out(
        self,
        progress: RunProgress,
        by_source: dict[str, float],
        shares: Mapping[str, float],
        seconds: float,
    ) -> None:
        """Note an evaluation that took ``seconds``; ``shares`` are those drawn with there."""
        taken = Evaluation(progress.step, progress.tokens, by_source)
        self.evaluations.append(taken)
        weighted = weighted_mean(by_source, shares)
        figures = {
            "loss": taken.mean,
            "weighted_loss": weighted,
            "by_source": by_source,
            "shares": shares,
            "seconds": seconds,
        }
        curves = {"held_out": weighted, "held_out_unweighted": taken.mean}
        self._write("held_out", progress, figures, curves)

    def energy(
        self, progress: RunProgress, devices: EnergyReading, hosts: EnergyReading
    ) -> None:
        """Note what was counted since this process began; the run's earlier ones' is added."""
        counted = {"devices": devices, "hosts": hosts}
        used = {name: self._energy_before[name] + one for name, one in counted.items()}
        self.energy_used, total = used, used["devices"]
        curves = {"device_joules": total.joules} if total.counted_seconds else {}
        figures = {name: one.as_json() for name, one in used.items()}
        self._write("energy", progress, figures, curves)

    def held_out_loss(self, tokens: int) -> float | None:
        """Return the plain mean over sources after so many tokens, if it was taken then.

        It ranks checkpoints of different phases, whose mixtures weigh the sources differently.
        """
        return next((one.mean for one in self.evaluations if one.tokens == tokens), None)

    def go_back(self, progress: RunProgress) -> None:
        """Forget the evaluations after ``progress``; their lines stay in the file."""
        self.evaluations = [one for one in self.evaluations if one.tokens <= progress.tokens]

    def _write(
        self,
        kind: str,
        at: ClockReading,
        figures: Mapping[str, object],
        curves: Mapping[str, float],
    ) -> None:
        if self.curves is None:
            return
        now = run_time(self.file.parent)
        line = {"kind": kind, "time": now, "step": at.step, "tokens": at.tokens, **figures}
        self._patience(self.file, lambda: append_line(self.file, line, sync=False))
        if curves:
            self.curves.add(curves, step=at.step)


def recent_speeds(file: Path, *, after_step: int) -> list[float]:
    """Read the tokens per second of the last steps that followed ``after_step``."""
    steps = (one for one in lines_from_end(file) if one["kind"] == "step")
    of_phase = takewhile(lambda one: one["step"] > after_step, steps)
    return [one["tokens_per_second"] for one in islice(of_phase, MOST_SPEEDS)]


@dataclass(kw_only=True, eq=False)
class HeldOutLoss(RunCallback):
    """Evaluate before the first step, at every cadence that a step crosses, and at the end."""

    windows: HeldOutWindows
    metrics: Metrics

    def on_begin(self, module: Pretraining) -> None:
        if module.progress.step == 0:
            self._evaluate(module)

    def on_step(self, module: Pretraining) -> None:
        if module.is_due(module.recipe.evaluation.every_tokens):
            self._evaluate(module)

    @torch.no_grad()
    def _evaluate(self, module: Pretraining) -> None:
        began = time.perf_counter()
        module.eval()
        by_source = {name: self._loss(module, name) for name in self.windows.sources}
        module.train()
        shares = module.batches.shares_after(module.progress.step)
        seconds = time.perf_counter() - began
        self.metrics.held_out(module.progress, by_source, shares, seconds)

    def _loss(self, module: Pretraining, source: str) -> float:
        """Average over tokens, in nats; the data ranks take turns.

        Ranks that evaluate the same window count it once each, and context ranks their part of
        it, all equally long: the mean is that of the window.
        """
        sums = torch.zeros(2, dtype=torch.float64, device=module.device)
        degrees = module.recipe.parallelism
        divisor = sequence_divisor(
            context=degrees.context, slices=degrees.tensor if degrees.sequence_parallel else 1
        )
        # The few last tokens are left out that would not divide among the ranks of a sequence.
        windows = (
            window[: kept + 1]
            for window in self.windows.windows(source)
            if (kept := (len(window) - 1) // divisor * divisor)
        )
        batches = same_length(windows, degrees.microbatch_sequences)
        for rows, counts in _turns(batches, module.mesh.data_rank, module.mesh.data_ranks):
            loss = module.engine.evaluate(rows.to(module.device))
            if loss is not None and counts:
                tokens = loss.new_tensor(rows[:, 1:].numel()).double()
                sums += torch.stack([loss.double() * tokens, tokens])
        total, tokens = sum_over_ranks(sums).tolist()
        return float(total / tokens)


def _turns(batches: Iterator[Tensor], rank: int, ranks: int) -> Iterator[tuple[Tensor, bool]]:
    """Take every ``ranks``-th batch of a shape, and say whether it counts.

    All ranks take equally many of one shape, since some layouts move weights or tokens between
    ranks at every one of them: who has none left repeats another's, for nothing.
    """
    for _, alike in groupby(batches, key=lambda batch: batch.shape):
        while turn := list(islice(alike, ranks)):
            yield (turn[rank], True) if rank < len(turn) else (turn[0], False)


def same_length(windows: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """Stack neighbouring windows of one length into batches of at most ``most``."""
    for _, group in groupby(windows, key=len):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)
