"""Which ranks are slow, and whose memory grows, from what all ranks have told of themselves."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median, median_low


@dataclass(frozen=True)
class Slow:
    """A rank that needs ``ratio`` times the seconds of its like."""

    rank: int
    seconds: float
    ratio: float


def slow_ranks(
    seconds: Sequence[float], alike: Sequence[Hashable], *, ratio: float
) -> list[Slow]:
    """Name the ranks that need at least ``ratio`` times the median of those that are alike.

    ``seconds`` of computing and the kind of work, a pipeline stage, are given for each rank.
    The median bears that almost half of the ranks are slow; of two the faster one counts.
    """
    found = []
    for rank, (mine, kind) in enumerate(zip(seconds, alike, strict=True)):
        usual = median_low(
            other for other, its in zip(seconds, alike, strict=True) if its == kind
        )
        if usual > 0 and mine >= ratio * usual:
            found.append(Slow(rank=rank, seconds=mine, ratio=mine / usual))
    return found


class Growth:
    """Notice memory that grows from look to look, and say so once until it has grown again."""

    LOOKS = 5  # of which the medians are compared: one evaluation or checkpoint is no trend

    def __init__(self, *, fraction: float) -> None:
        self._fraction = fraction
        self._first: dict[int, list[float]] = {}
        self._last: dict[int, list[float]] = {}

    def look(self, memory_bytes: Sequence[float]) -> dict[int, float]:
        """Return by which fraction the memory of a rank has grown, where that is too much."""
        grown = {}
        for rank, here in enumerate(memory_bytes):
            first = self._first.setdefault(rank, [])
            if len(first) < self.LOOKS:
                first.append(here)
                continue
            last = self._last.setdefault(rank, [])
            last.append(here)
            del last[: -self.LOOKS]
            by = median(last) / median(first) - 1
            if len(last) == self.LOOKS and by >= self._fraction:
                grown[rank] = by
                self._first[rank], self._last[rank] = list(last), []
        return grown
