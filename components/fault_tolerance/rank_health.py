"""Rank health: what each rank tells of itself, which ranks are slow, whose memory grows."""

import resource
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median, median_low

import torch
import torch.distributed as dist
from torch import Tensor

from components.energy.counters import EnergyReading, Meter

_PARTS = 3  # of what a meter tells


@dataclass(frozen=True)
class RankReport:
    """Of each rank the median seconds of a step, and its bytes; of all what meters counted."""

    seconds: Sequence[float]
    memory_bytes: Sequence[float]
    energy: Sequence[EnergyReading]


class RankFigures:
    """Gather figures of all ranks every ``every_steps`` steps, by a sum.

    A rank puts its own in its place and zeros elsewhere, so the sum over ranks has them all.
    All ranks have as many ``meters``, read when they tell, and between where they must be.
    """

    def __init__(self, *, every_steps: int) -> None:
        self._every_steps = every_steps
        self._seconds: list[float] = []
        self.told: RankReport | None = None
        self.meters: Sequence[Meter] = ()

    def note(self, seconds: float) -> None:
        """Note how long this rank computed in a step."""
        self._seconds.append(seconds)
        now = time.monotonic()
        for meter in self.meters:
            meter.keep_up(now)

    def own(self, *, step: int, device: torch.device) -> Tensor:
        """Return what this rank adds to the sum after ``step``, most often nothing."""
        if step % self._every_steps:
            return torch.zeros(0, dtype=torch.float64, device=device)
        figures = torch.zeros(2, dist.get_world_size(), dtype=torch.float64)
        figures[0, dist.get_rank()] = median(self._seconds)
        figures[1, dist.get_rank()] = held_bytes(device)
        self._seconds.clear()
        return torch.cat([figures.flatten().to(device), self.own_energy(device)])

    def own_energy(self, device: torch.device) -> Tensor:
        """Return what the meters of this rank have counted, for a sum over ranks."""
        now = time.monotonic()
        counted = [astuple(meter.count(now)) for meter in self.meters]
        return torch.tensor(counted, dtype=torch.float64, device=device).flatten()

    def take(self, sums: Tensor) -> None:
        """Read the sums; ``told`` is None after a step in which nothing was told."""
        if not len(sums):
            self.told = None
            return
        ranks = len(sums) - _PARTS * len(self.meters)
        seconds, memory_bytes = sums[:ranks].view(2, -1).tolist()
        self.told = RankReport(seconds, memory_bytes, everyones_energy(sums[ranks:]))


def everyones_energy(sums: Tensor) -> list[EnergyReading]:
    """Read sums over ranks of `RankFigures.own_energy`, one for each meter."""
    return [
        EnergyReading(joules=joules, counted_seconds=counted, passed_seconds=passed)
        for joules, counted, passed in sums.view(-1, _PARTS).tolist()
    ]


def held_bytes(device: torch.device) -> int:
    """Read what tensors hold on ``device``, on a CPU the resident memory of this process."""
    if device.type != "cpu":
        return int(torch.accelerator.memory_allocated(device))
    pages = Path("/proc/self/statm")
    if not pages.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # its peak, where no Linux is
    return int(pages.read_text("ascii").split()[1]) * resource.getpagesize()


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
    by_kind: dict[Hashable, list[float]] = defaultdict(list)
    for kind, mine in zip(alike, seconds, strict=True):
        by_kind[kind].append(mine)
    usual = {kind: median_low(values) for kind, values in by_kind.items()}
    return [
        Slow(rank=rank, seconds=mine, ratio=mine / usual[kind])
        for rank, (mine, kind) in enumerate(zip(seconds, alike, strict=True))
        if usual[kind] > 0 and mine >= ratio * usual[kind]
    ]


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
