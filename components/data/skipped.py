"""Samples that a run leaves out: windows of the order, over which its steps leap.

The order gives every number a sample; without windows the run's first sample is number 0, its
second number 1, and so on. What a step reads is so still a function of the step alone.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import sub

Window = tuple[int, int]  # the first number, and how many


class Skipped:
    """Tell the number of each sample that is trained on; windows may overlap, in any order."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self.windows = tuple(_merged(windows))
        # Samples left out before each window and after the last, and trained on before each.
        self._left_out = list(accumulate((count for _, count in self.windows), initial=0))
        firsts = [first for first, _ in self.windows]
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
        for first, count in self.windows:
            if first < number:
                yield first, min(count, number - first)


def _merged(windows: Iterable[Window]) -> Iterator[Window]:
    start, end = 0, 0
    for first, count in sorted(windows):
        if first > end:
            if end > start:
                yield start, end - start
            start = first
        end = max(end, first + count)

    if end > start:
        yield start, end - start
