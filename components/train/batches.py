"""Batches of one data rank as a function of the step, over samples that are left out."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from pathlib import Path

import numpy as np
import torch

from components.config.schema.recipe import Recipe
from components.data.manifest import Manifest
from components.data.order import SampleId, SourceDraws
from components.data.samples import PackedSamples, step_positions
from components.train.sample_order import make_order

Window = tuple[int, int]  # the first number, and how many


class SampleSkipper:
    """Return the number of each sample to train on; windows may overlap, in any order."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows: list[Window] = []
        for first, count in sorted(windows):
            start = first
            if self._windows and first <= sum(self._windows[-1]):
                start, before = self._windows.pop()
                count = max(before, first + count - start)
            if count:
                self._windows.append((start, count))
        # Samples left out before each window and after the last, and trained on before each.
        self._left_out = list(accumulate((count for _, count in self._windows), initial=0))
        firsts = [first for first, _ in self._windows]
        self._trained = list(map(sub, firsts, self._left_out))

    def number(self, place: int) -> int:
        """Find the number of the sample that is trained on at ``place``, counted from 0."""
        return place + self._left_out[bisect_right(self._trained, place)]

    def window(self, first_place: int, end_place: int) -> Window:
        """Name the numbers from one place up to another, and what was left out between them."""
        first = self.number(first_place)
        return first, self.number(end_place - 1) + 1 - first

    def before(self, number: int) -> Iterator[Window]:
        """Give the windows, or their parts, below ``number``."""
        for first, count in self._windows:
            if first < number:
                yield first, min(count, number - first)


class StepBatches:
    """One data rank's share of each step, by the positions of its samples."""

    def __init__(self, *, recipe: Recipe, folder: Path, manifest: Manifest, rank: int) -> None:
        self._order = make_order(recipe, manifest)
        self._samples = PackedSamples(
            folder=folder,
            manifest=manifest,
            order=self._order,
            sequence_length=recipe.budget.sequence_length,
        )
        self._ramp, self._rank = recipe.ramp, rank
        self._microbatch = recipe.parallelism.microbatch_sequences
        self._ranks = recipe.parallelism.data * recipe.parallelism.expert
        self.skip(())

    def skip(self, windows: Sequence[Window]) -> None:
        """Leave these numbers of the order out, and no others, from the next step on."""
        self._skipped = SampleSkipper(windows)

    def read(self, positions: Sequence[int], *, pinned: bool) -> torch.Tensor:
        """Read samples by their numbers: ``[microbatches, sequences, length + 1]``."""
        samples = [self._samples[position].numpy() for position in positions]
        shape = len(samples), len(samples[0])
        rows = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        # Torch's own would start as many helpers as it has for each thread that asks for it.
        np.stack(samples, out=rows.numpy())
        return rows.view(-1, self._microbatch, rows.shape[1])

    def positions(self, step: int) -> list[int]:
        """Numbers in the whole order that this rank reads at ``step``, counted from 0."""
        first_sample = self._ramp.consumed_after(step)
        places = step_positions(
            first_sample=first_sample,
            samples_per_step=self._ramp.samples_at(first_sample),
            rank=self._rank,
            ranks=self._ranks,
        )
        return list(map(self._skipped.number, places))

    def sample_ids(self, step: int) -> list[SampleId]:
        return [self._samples.sample_id(position) for position in self.positions(step)]

    def window(self, first_step: int, end_step: int) -> Window:
        """Name what all ranks read in the steps from ``first_step`` up to ``end_step``."""
        return self._skipped.window(*map(self._ramp.consumed_after, (first_step, end_step)))

    def drawn_before(self, step: int) -> dict[str, SourceDraws]:
        """Sum up per source what all ranks trained on in the first ``step`` steps."""
        places = self._ramp.consumed_after(step)
        end = self._skipped.number(places - 1) + 1 if places else 0
        return self._order.drawn(end, without=list(self._skipped.before(end)))

    def shares_after(self, step: int) -> dict[str, float]:
        """Give the shares that the last sample of the first ``step`` steps was drawn with."""
        places = self._ramp.consumed_after(step)
        return self._order.shares_at(self._skipped.number(max(places, 1) - 1))
