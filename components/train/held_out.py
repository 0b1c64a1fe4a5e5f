"""The held-out loss of each source, taken on the clock of tokens."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import torch
from torch import Tensor

from components.data.samples import HeldOutWindows
from components.train.callback import RunCallback
from components.train.journal import Journal
from components.train.module import Pretraining
from components.train.strategy import sum_over


class HeldOutLoss(RunCallback):
    """Evaluate before the first step, at every cadence that a step crosses, and at the end."""

    def __init__(self, *, windows: HeldOutWindows, journal: Journal, every_tokens: int) -> None:
        self._windows = windows
        self._journal = journal
        self._every_tokens = every_tokens

    def on_begin(self, module: Pretraining) -> None:
        if module.progress.step == 0:
            self._evaluate(module)

    def on_step(self, module: Pretraining) -> None:
        if module.is_due(self._every_tokens):
            self._evaluate(module)

    @torch.inference_mode()
    def _evaluate(self, module: Pretraining) -> None:
        module.eval()
        with module.autocast():
            by_source = {name: self._loss(module, name) for name in self._windows.sources}
        module.train()
        self._journal.held_out(module.progress, by_source)

    def _loss(self, module: Pretraining, source: str) -> float:
        """Average over tokens, in nats; each rank takes every n-th window."""
        rank, ranks = module.mesh.get_local_rank(), module.mesh.size()
        mine = islice(self._windows.windows(source), rank, None, ranks)
        sums = torch.zeros(2, dtype=torch.float64, device=module.device)
        for rows in _same_length(mine, module.recipe.parallelism.microbatch_sequences):
            rows = rows.to(module.device)
            count = rows[:, 1:].numel()
            loss = module.loss(rows)
            sums += torch.stack([loss.double() * count, loss.new_tensor(count).double()])
        total, tokens = sum_over(sums, module.mesh).tolist()
        return float(total / tokens)


def _same_length(windows: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """Stack neighbouring windows of one length into batches of at most ``most``."""
    for _, group in groupby(windows, key=len):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)
