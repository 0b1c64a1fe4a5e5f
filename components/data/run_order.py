"""The order of a whole run, whose phases may cut their sources at other lengths.

Where the length of a sample changes the sources are cut anew, from their first token on, and
dealt anew: a new epoch of every source begins, since no windows of one length are exactly what
windows of another have left. So a source that is read before and after may show a text again
before all of it was seen; what is counted as read are its tokens, of all lengths together.

A sample has a number. Those of each length begin at a multiple of ``CUT``: a sample that is
left out moves the numbers of its own length alone, and none across the border.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from components.data.order import Phase, SampleId, SampleOrder, SourceDraws

CUT = 1 << 40  # above the samples of any run
Window = tuple[int, int]  # the first number, and how many


@dataclass(frozen=True)
class Cut:
    """Samples of one length in a row: the samples before it, and the order of its own."""

    first_sample: int
    sequence_length: int
    order: SampleOrder


@dataclass(frozen=True)
class CutDraws:
    """How far into a cut a run has come: up to which number, and what was left out of it."""

    end: int
    without: tuple[Window, ...] = ()

    @property
    def taken(self) -> int:
        return self.end - sum(count for _, count in self.without)


class RunOrder:
    """The cuts of a run, one after another; with one of them all is as in its order."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        self.cuts = tuple(cuts)

    def __getitem__(self, number: int) -> SampleId:
        cut, index = divmod(number, CUT)
        return self.cuts[cut].order[index]

    def cut_at(self, sample: int) -> int:
        """Say in which cut lies what comes after so many samples."""
        return sum(cut.first_sample <= sample for cut in self.cuts[1:])

    def inside(self, samples: int) -> list[int]:
        """Divide the first ``samples`` of the run among the cuts."""
        starts = [min(cut.first_sample, samples) for cut in self.cuts]
        return [end - start for start, end in pairwise([*starts, samples])]

    def count(self, source: str, samples: int) -> int:
        """Count the samples of ``source`` among the first ``samples``, none left out."""
        parts = zip(self.cuts, self.inside(samples), strict=True)
        return sum(cut.order.count(source, taken) for cut, taken in parts)

    def drawn(self, samples: int) -> dict[str, SourceDraws]:
        """Put the shares of the first ``samples`` beside the promised ones, none left out."""
        return self.drawn_in([CutDraws(taken) for taken in self.inside(samples)])

    def drawn_in(self, parts: Sequence[CutDraws]) -> dict[str, SourceDraws]:
        """Put the shares of what was taken of each cut beside those promised, by tokens."""
        reached = [
            (cut, part) for cut, part in zip(self.cuts, parts, strict=True) if part.end
        ] or [(self.cuts[0], parts[0])]
        found = [cut.order.drawn(part.end, without=part.without) for cut, part in reached]
        if not found[1:]:
            return found[0]
        promised = [part.end * cut.sequence_length for cut, part in reached]
        taken = [part.taken * cut.sequence_length for cut, part in reached]
        return {
            name: SourceDraws(
                promised_share=_mean([one[name].promised_share for one in found], promised),
                share=_mean([one[name].share for one in found], taken),
                samples=sum(one[name].samples for one in found),
                epochs=sum(one[name].epochs for one in found),
            )
            for name in found[0]
        }


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return total / sum(weights)


def split_at(phases: Sequence[Phase], first_samples: Sequence[int]) -> list[list[Phase]]:
    """Divide a run's shares among its cuts, each counting its own samples from 0."""
    parts = []
    for first, end in pairwise([*first_samples, None]):
        assert first is not None, "the last cut has no end"
        before = [phase for phase in phases if phase.first_sample <= first][-1:]
        inside = [
            phase
            for phase in phases
            if first < phase.first_sample and (end is None or phase.first_sample < end)
        ]
        parts.append([
            Phase(max(0, phase.first_sample - first), phase.shares, phase.path)
            for phase in (*before, *inside)
        ])
    return parts
