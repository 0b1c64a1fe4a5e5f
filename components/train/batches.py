"""Batches of one data rank as a function of the step, over samples that are left out."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.order import SampleId, SourceDraws
from components.data.run_order import CUT, CutDraws, Window
from components.data.samples import PackedSamples, samples_digest, step_positions
from components.train.sample_order import make_order


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


class StepBatch(NamedTuple):
    """A rank's part of a step.

    ``tokens`` are ``[microbatches, sequences, length + 1]``. ``samples_digest`` is the sum of
    the hashes of its samples.
    """

    tokens: torch.Tensor
    samples_digest: int = 0


class StepBatches:
    """One data rank's share of each step, by the positions of its samples.

    It reads steps of one length of sequence, that of ``recipe``; it counts those of the run.
    """

    def __init__(self, *, recipe: Recipe, folder: Path, manifest: Manifest, rank: int) -> None:
        self._order = make_order(recipe.whole, manifest, folder)
        self._length = recipe.budget.sequence_length
        self._samples = PackedSamples(
            folder=folder,
            manifest=manifest,
            order=self._order,
            sequence_length=self._length,
            packed=recipe.span.packed,
        )
        self._clock, self._rank = recipe.clock, rank
        self._microbatch = recipe.parallelism.microbatch_sequences
        self._ranks = recipe.parallelism.data * recipe.parallelism.expert
        self.skip(())

    def skip(self, windows: Sequence[Window]) -> None:
        """Leave these numbers of the order out, and no others, from the next step on."""
        self._skipped = [
            SampleSkipper(
                (number - cut * CUT, count) for number, count in windows if number // CUT == cut
            )
            for cut, _ in enumerate(self._order.cuts)
        ]

    def read(self, positions: Sequence[int], *, pinned: bool) -> torch.Tensor:
        """Read samples by their numbers: ``[microbatches, sequences, length + 1]``."""
        samples = [self._samples[position].numpy() for position in positions]
        shape = len(samples), len(samples[0])
        rows = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        # Torch's own would start as many helpers as it has for each thread that asks for it.
        np.stack(samples, out=rows.numpy())
        return rows.view(-1, self._microbatch, rows.shape[1])

    def digest(self, positions: Sequence[int]) -> int:
        """Hash which samples have these numbers, whatever their order."""
        return samples_digest(map(self._samples.sample_id, positions))

    def positions(self, step: int) -> list[int]:
        """Numbers in the whole order that this rank reads at ``step``, counted from 0."""
        plateau = self._clock.at(step)
        assert plateau.sequence_length == self._length, "a step of another phase"
        places = step_positions(
            first_sample=self._clock.consumed_after(step),
            samples_per_step=plateau.samples,
            rank=self._rank,
            ranks=self._ranks,
        )
        return list(map(self._number, places))

    def sample_ids(self, step: int) -> list[SampleId]:
        return [self._samples.sample_id(position) for position in self.positions(step)]

    def window(self, first_step: int, end_step: int) -> Window:
        """Name what all ranks read in the steps from ``first_step`` up to ``end_step``.

        Of steps of two lengths it is those of the later one.
        """
        first, end = map(self._clock.consumed_after, (first_step, end_step))
        cut = self._order.cut_at(end - 1)
        before = self._order.cuts[cut].first_sample
        number, count = self._skipped[cut].window(max(0, first - before), end - before)
        return cut * CUT + number, count

    def drawn_before(self, step: int) -> dict[str, SourceDraws]:
        """Sum up per source what all ranks trained on in the first ``step`` steps."""
        parts = self._order.inside(self._clock.consumed_after(step))
        return self._order.drawn_in(list(map(_draws, self._skipped, parts)))

    def shares_after(self, step: int) -> dict[str, float]:
        """Give the shares that the last sample of the first ``step`` steps was drawn with."""
        number = self._number(max(self._clock.consumed_after(step), 1) - 1)
        return self._order.cuts[number // CUT].order.shares_at(number % CUT)

    def _number(self, place: int) -> int:
        cut = self._order.cut_at(place)
        inside = place - self._order.cuts[cut].first_sample
        return cut * CUT + self._skipped[cut].number(inside)


def _draws(skipped: SampleSkipper, places: int) -> CutDraws:
    end = skipped.number(places - 1) + 1 if places else 0
    return CutDraws(end, tuple(skipped.before(end)))
