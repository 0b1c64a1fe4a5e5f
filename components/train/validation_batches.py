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
    """Iterate over this data rank's held-out batches of one source, and whether each counts.

    A batch has the shape ``[sequences, length + 1]``.
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
            for window in self._windows.iter_windows(self._source)
            if (length := (len(window) - 1) // self._divisor * self._divisor)
        )
        batches = stack_equal_lengths(windows, self._sequences)
        return take_turns(batches, self._mesh.data_rank, self._mesh.data_ranks)


def take_turns(
    batches: Iterator[Tensor], rank: int, ranks: int
) -> Iterator[tuple[Tensor, bool]]:
    """Yield every ``ranks``-th batch of each shape, and whether it counts.

    All ranks yield equally many batches of a shape, since some layouts move weights or tokens
    between ranks in every batch. A rank without a batch repeats another rank's, uncounted.
    """
    for _, alike in groupby(batches, key=lambda batch: batch.shape):
        while turn := list(islice(alike, ranks)):
            yield (turn[rank], True) if rank < len(turn) else (turn[0], False)


def stack_equal_lengths(windows: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """Stack neighboring windows of one length into batches of at most ``most``."""
    for _, group in groupby(windows, key=len):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)
