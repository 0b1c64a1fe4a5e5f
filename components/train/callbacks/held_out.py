"""The held-out loss of each source, taken on the clock of tokens."""

import time
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import torch
from torch import Tensor

from components.config.rules.layout import sequence_divisor
from components.data.samples import HeldOutWindows
from components.distributed.mesh import sum_over_ranks
from components.train.callbacks.hooks import RunCallback
from components.train.callbacks.metrics_logger import Metrics
from components.train.module import Pretraining


class HeldOutLoss(RunCallback):
    """Evaluate before the first step, at every cadence that a step crosses, and at the end."""

    def __init__(self, *, windows: HeldOutWindows, metrics: Metrics, every_tokens: int) -> None:
        self._windows = windows
        self._metrics = metrics
        self._every_tokens = every_tokens

    def on_begin(self, module: Pretraining) -> None:
        if module.progress.step == 0:
            self._evaluate(module)

    def on_step(self, module: Pretraining) -> None:
        if module.is_due(self._every_tokens):
            self._evaluate(module)

    @torch.no_grad()
    def _evaluate(self, module: Pretraining) -> None:
        began = time.perf_counter()
        module.eval()
        by_source = {name: self._loss(module, name) for name in self._windows.sources}
        module.train()
        self._metrics.held_out(module.progress, by_source, time.perf_counter() - began)

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
        windows = _divisible(self._windows.windows(source), divisor)
        batches = same_length(windows, degrees.microbatch_sequences)
        for rows, counts in _turns(batches, module.mesh.data_rank, module.mesh.data_ranks):
            loss = module.evaluate(rows.to(module.device))
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


def _divisible(windows: Iterable[Tensor], divisor: int) -> Iterator[Tensor]:
    """Leave out the few last tokens that would not divide among the ranks of a sequence."""
    for window in windows:
        if kept := (len(window) - 1) // divisor * divisor:
            yield window[: kept + 1]


def same_length(windows: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """Stack neighbouring windows of one length into batches of at most ``most``."""
    for _, group in groupby(windows, key=len):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)
