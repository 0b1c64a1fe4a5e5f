"""Batches of one data rank as a function of the step, with skipped samples."""

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
from components.data.run_order import CUT, CutDraws, SampleWindow
from components.data.samples import PackedSamples, samples_digest, step_positions
from components.train.sample_order import make_order


class SampleSkipper:
    """Map from positions in training to sample numbers, without (overlapping) windows."""

    def __init__(self, windows: Iterable[SampleWindow]) -> None:
        self._windows: list[SampleWindow] = []
        for first, count in sorted(windows):
            start = first
            if self._windows and first <= sum(self._windows[-1]):
                start, before = self._windows.pop()
                count = max(before, first + count - start)
            if count:
                self._windows.append((start, count))
        # The skipped samples before each window and in total; the trained ones before each.
        self._left_out = list(accumulate((count for _, count in self._windows), initial=0))
        firsts = [first for first, _ in self._windows]
        self._trained = list(map(sub, firsts, self._left_out))

    def find_sample_number(self, place: int) -> int:
        """Return the number of the sample at position ``place``, counted from 0."""
        return place + self._left_out[bisect_right(self._trained, place)]

    def find_window(self, first_place: int, end_place: int) -> SampleWindow:
        """Return the window (first number, count) of a range of positions, skipped included."""
        first = self.find_sample_number(first_place)
        return first, self.find_sample_number(end_place - 1) + 1 - first

    def iterate_skipped(self, number: int) -> Iterator[SampleWindow]:
        """Yield the skipped windows below ``number``. A window across it is cut there."""
        for first, count in self._windows:
            if first < number:
                yield first, min(count, number - first)


class StepBatch(NamedTuple):
    """One rank's batch, [microbatches, sequences, length + 1], and its samples' hash sum."""

    tokens: torch.Tensor
    samples_digest: int = 0


class RankBatches:
    """Reader of one data rank's batches, by the positions of its samples.

    It reads only steps with the sequence length of ``recipe``, but counts all steps of the run.
    """

    def __init__(self, *, recipe: Recipe, folder: Path, manifest: Manifest, rank: int) -> None:
        self._order = make_order(recipe.whole_run, manifest, folder)
        self._length = recipe.budget.sequence_length
        self._samples = PackedSamples(
            folder=folder,
            manifest=manifest,
            order=self._order,
            sequence_length=self._length,
            packed=recipe.phase_span.packed,
        )
        self._clock, self._rank = recipe.token_clock, rank
        self._microbatch = recipe.parallelism.microbatch_sequences
        self._ranks = recipe.parallelism.data * recipe.parallelism.expert
        self.set_skipped(())

    def set_skipped(self, windows: Sequence[SampleWindow]) -> None:
        """Set the windows of sample numbers to skip from the next step on."""
        self._skipped = [
            SampleSkipper(
                (number - cut * CUT, count) for number, count in windows if number // CUT == cut
            )
            for cut, _ in enumerate(self._order.cuts)
        ]

    def read_samples(self, positions: Sequence[int], *, pinned: bool) -> torch.Tensor:
        """Read samples by number, with the shape ``[microbatches, sequences, length + 1]``."""
        samples = [self._samples[position].numpy() for position in positions]
        shape = len(samples), len(samples[0])
        rows = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)
        # Use NumPy: `torch.stack` would start a full thread pool for each calling thread.
        np.stack(samples, out=rows.numpy())
        return rows.view(-1, self._microbatch, rows.shape[1])

    def hash_samples(self, positions: Sequence[int]) -> int:
        """Return an order-independent hash of the samples with these numbers."""
        return samples_digest(map(self._samples.sample_id, positions))

    def list_sample_numbers(self, step: int) -> list[int]:
        """Return the sample numbers of this rank at ``step``, counted from 0."""
        plateau = self._clock.find_batch_stage(step)
        assert plateau.sequence_length == self._length, "a step of another phase"
        places = step_positions(
            first_sample=self._clock.consumed_after(step),
            samples_per_step=plateau.samples,
            rank=self._rank,
            ranks=self._ranks,
        )
        return list(map(self._number, places))

    def sample_ids(self, step: int) -> list[SampleId]:
        return [
            self._samples.sample_id(position) for position in self.list_sample_numbers(step)
        ]

    def find_window(self, first_step: int, end_step: int) -> SampleWindow:
        """Return the sample window that all ranks read from ``first_step`` up to ``end_step``.

        If the steps have two sequence lengths, only those with the later one count.
        """
        first, end = map(self._clock.consumed_after, (first_step, end_step))
        cut = self._order.cut_at(end - 1)
        before = self._order.cuts[cut].first_sample
        number, count = self._skipped[cut].find_window(max(0, first - before), end - before)
        return cut * CUT + number, count

    def drawn_before(self, step: int) -> dict[str, SourceDraws]:
        """Return the samples of each source that all ranks trained on in the first steps."""
        parts = self._order.count_by_cut(self._clock.consumed_after(step))
        return self._order.drawn_in(list(map(_draws, self._skipped, parts)))

    def shares_after(self, step: int) -> dict[str, float]:
        """Return the sources' shares for the last sample of the first ``step`` steps."""
        number = self._number(max(self._clock.consumed_after(step), 1) - 1)
        return self._order.cuts[number // CUT].order.shares_at(number % CUT)

    def _number(self, place: int) -> int:
        cut = self._order.cut_at(place)
        inside = place - self._order.cuts[cut].first_sample
        return cut * CUT + self._skipped[cut].find_sample_number(inside)


def _draws(skipped: SampleSkipper, places: int) -> CutDraws:
    end = skipped.find_sample_number(places - 1) + 1 if places else 0
    return CutDraws(end, tuple(skipped.iterate_skipped(end)))
