"""Validation batches: held-out windows of one length, shared among the data ranks."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import torch
from torch import Tensor

from components.config.recipe import Recipe
from components.config.rules.layout import sequence_divisor
from components.data.samples import HeldOutWindows
from components.distributed.mesh import Mesh


class ValidationBatches:
    """Iterate over the held-out batches of one source that this data rank evaluates.

    Each item is a batch ``[sequences, length + 1]`` and whether it counts in the mean.
    """

    def __init__(
        self, windows: HeldOutWindows, source: str, *, recipe: Recipe, mesh: Mesh
    ) -> None:
        degrees = recipe.parallelism
        self._windows, self._source, self._mesh = windows, source, mesh
        self._sequences = degrees.microbatch_sequences
        self._divisor = sequence_divisor(
            context=degrees.context, slices=degrees.tensor if degrees.sequence_parallel else 1
        )

    def __iter__(self) -> Iterator[tuple[Tensor, bool]]:
        # The last few tokens that do not divide among the ranks of a sequence are excluded.
        windows = (
            window[: length + 1]
            for window in self._windows.windows(self._source)
            if (length := (len(window) - 1) // self._divisor * self._divisor)
        )
        batches = stack_equal_lengths(windows, self._sequences)
        return take_turns(batches, self._mesh.data_rank, self._mesh.data_ranks)


def take_turns(
    batches: Iterator[Tensor], rank: int, ranks: int
) -> Iterator[tuple[Tensor, bool]]:
    """Take every ``ranks``-th batch of each shape, with whether it counts.

    All ranks take equally many batches of a shape, since some layouts move weights or tokens
    between ranks in every batch. A rank that has none left repeats another rank's batch, which
    does not count.
    """
    for _, alike in groupby(batches, key=lambda batch: batch.shape):
        while turn := list(islice(alike, ranks)):
            yield (turn[rank], True) if rank < len(turn) else (turn[0], False)


def stack_equal_lengths(windows: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """Stack neighboring windows of one length into batches of at most ``most``."""
    for _, group in groupby(windows, key=len):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)
