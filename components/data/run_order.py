"""Sample order of a run with a sequence length that may change between phases.

A cut is a stretch of the run with one sequence length. Each cut divides every source into
windows again from its first token and starts a new epoch of every source, because windows of
one length cannot cover exactly what windows of another length left unread. So a source that is
read in two cuts may repeat a text before all of it was read, and read data is counted in
tokens.

The sample numbers of a cut start at a multiple of ``CUT``. Skipping a sample shifts only the
numbers of its own cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from components.data.order import Phase, SampleId, SampleOrder, SourceDraws

CUT = 1 << 40  # more than the samples of any run
SampleWindow = tuple[int, int]  # first number, count


@dataclass(frozen=True)
class Cut:
    """Consecutive samples of one length: their first sample in the run, and their order."""

    first_sample: int
    sequence_length: int
    order: SampleOrder


@dataclass(frozen=True)
class CutDraws:
    """Progress in a cut: the number after the last sample, and the skipped windows."""

    end: int
    without: tuple[SampleWindow, ...] = ()

    @property
    def num_samples(self) -> int:
        return self.end - sum(count for _, count in self.without)


class RunOrder:
    """Sample order of all cuts of a run. With one cut it equals that cut's order."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        self.cuts = tuple(cuts)

    def __getitem__(self, number: int) -> SampleId:
        cut, index = divmod(number, CUT)
        return self.cuts[cut].order[index]

    def cut_at(self, sample: int) -> int:
        """Return the index of the cut that contains the run's sample ``sample`` (from 0)."""
        return sum(cut.first_sample <= sample for cut in self.cuts[1:])

    def count_by_cut(self, samples: int) -> list[int]:
        """Return how many of the first ``samples`` of the run are in each cut."""
        starts = [min(cut.first_sample, samples) for cut in self.cuts]
        return [end - start for start, end in pairwise([*starts, samples])]

    def count_samples(self, source: str, samples: int) -> int:
        """Count the samples of ``source`` among the first ``samples``, if none is skipped."""
        parts = zip(self.cuts, self.count_by_cut(samples), strict=True)
        return sum(cut.order.count_samples(source, count) for cut, count in parts)

    def summarize_draws(self, samples: int) -> dict[str, SourceDraws]:
        """Return promised and actual shares of the first ``samples``, if none is skipped."""
        return self.drawn_in([CutDraws(count) for count in self.count_by_cut(samples)])

    def drawn_in(self, parts: Sequence[CutDraws]) -> dict[str, SourceDraws]:
        """Return promised and actual shares of what was drawn from each cut, by tokens."""
        reached = [
            (cut, part) for cut, part in zip(self.cuts, parts, strict=True) if part.end
        ] or [(self.cuts[0], parts[0])]
        draws = [
            cut.order.summarize_draws(part.end, without=part.without) for cut, part in reached
        ]
        if not draws[1:]:
            return draws[0]
        promised_tokens = [part.end * cut.sequence_length for cut, part in reached]
        drawn_tokens = [part.num_samples * cut.sequence_length for cut, part in reached]
        return {
            name: SourceDraws(
                promised_share=_mean(
                    [draw[name].promised_share for draw in draws], promised_tokens
                ),
                share=_mean([draw[name].share for draw in draws], drawn_tokens),
                samples=sum(draw[name].samples for draw in draws),
                epochs=sum(draw[name].epochs for draw in draws),
            )
            for name in draws[0]
        }


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return total / sum(weights)


def split_at(phases: Sequence[Phase], first_samples: Sequence[int]) -> list[list[Phase]]:
    """Split a run's phases by cut; each cut counts its samples from 0."""
    parts = []
    for first, end in pairwise([*first_samples, None]):
        assert first is not None, "the last cut has no end"
        current = [phase for phase in phases if phase.first_sample <= first][-1:]
        inside = [
            phase
            for phase in phases
            if first < phase.first_sample and (end is None or phase.first_sample < end)
        ]
        parts.append([
            Phase(max(0, phase.first_sample - first), phase.shares, phase.path)
            for phase in (*current, *inside)
        ])
    return parts
