"""Sample order as a function of (seed, position), by a keyed permutation that is computed.

The index is written as two digits, ``low`` below ``columns`` and ``high`` below ``rows``, with
``rows x columns`` just above ``size``. Each round adds a keyed hash of one digit to the other,
which can be undone, so every round permutes the rectangle (a generalised Feistel network: Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 5). An image outside
``range(size)`` is permuted again until it falls inside ("cycle walking", section 4 there).

A run is a row of phases, each with its shares: inside a phase every prefix keeps them within
two samples. A source's draws are counted through all phases, so its epochs go on where the
phase before left off, and no sample comes again before all of its source have been drawn.
"""

import hashlib
import math
import operator
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import SupportsIndex

from components.data.share_tree import ShareTree, exact_share
from components.errors import RecipeError

NUM_ROUNDS = 8
MASK = (1 << 64) - 1


@lru_cache(maxsize=1024)
def round_keys(seed: int, source: str, epoch: int) -> tuple[int, ...]:
    """Derive one 64-bit key a round from what names the permutation."""
    name = f"{seed}\0{epoch}\0{source}".encode()
    digest = hashlib.blake2b(name, digest_size=8 * NUM_ROUNDS).digest()
    return struct.unpack(f"<{NUM_ROUNDS}Q", digest)


def permute(index: int, size: int, keys: tuple[int, ...]) -> int:
    """Map ``index`` to its image in ``range(size)``; distinct indices have distinct images."""
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    while True:
        high, low = divmod(index, columns)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            high = (high + _mix(low ^ first)) % rows
            low = (low + _mix(high ^ second)) % columns
        index = high * columns + low
        if index < size:
            return index


def _mix(value: int) -> int:
    """Hash 64 bits (Stafford's variant 13 of MurmurHash3's finaliser, 2011)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


SUM_TOLERANCE = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class SampleId:
    """Name one sample: ``index`` counts windows of the source's tokens."""

    source: str
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class SourceDraws:
    """How much of a source was drawn: promised by its shares, and in fact."""

    promised_share: float
    share: float
    samples: int
    epochs: float


@dataclass(frozen=True, slots=True)
class Phase:
    """Shares that hold from ``first_sample`` on; ``path`` is their place in the recipe."""

    first_sample: int
    shares: Mapping[str, float]
    path: str


class SampleOrder:
    """Sample order of an endless run: which sample stands at a position, in O(1) memory.

    Each source is drawn without replacement: every epoch of it is a fresh permutation.
    """

    def __init__(
        self, *, phases: Sequence[Phase], samples: Mapping[str, int], seed: int
    ) -> None:
        """Build a tree of sources for each phase; the order of the mappings has no effect.

        Raises:
            RecipeError: phases that do not follow one another from sample 0 on; shares that are
                negative, do not add up to 1, name an unknown source, or give a part to a
                source without a whole sample.
        """
        _check_starts(phases)
        for phase in phases:
            _check_shares(phase, samples)
        self._phases = tuple(phases)
        self._samples = dict(samples)
        self._seed = seed
        self._starts = [phase.first_sample for phase in phases]
        self._trees = [ShareTree(shares=phase.shares) for phase in phases]
        self._before: list[dict[str, int]] = [{}]  # draws of each source, by phase
        for tree, (start, end) in zip(self._trees, pairwise(self._starts), strict=False):
            counts = dict(self._before[-1])
            for source in tree.sources:
                counts[source] = counts.get(source, 0) + tree.count(source, end - start)
            self._before.append(counts)

    def __getitem__(self, position: SupportsIndex) -> SampleId:
        """Find the sample at ``position``.

        Raises:
            IndexError: the position is negative.
        """
        place = operator.index(position)
        if place < 0:
            raise IndexError(f"position {position} is before the first sample")
        phase = bisect_right(self._starts, place) - 1
        source, draws = self._trees[phase].draw(place - self._starts[phase])
        draws += self._before[phase].get(source, 0)
        size = self._samples[source]
        epoch, index = divmod(draws, size)
        keys = round_keys(self._seed, source, epoch)
        return SampleId(source, epoch, permute(index, size, keys))

    def count(self, source: str, position: SupportsIndex) -> int:
        """Count the samples of ``source`` among the first ``position``."""
        place = operator.index(position)
        phase = max(0, bisect_right(self._starts, place) - 1)
        inside = self._trees[phase].count(source, place - self._starts[phase])
        return self._before[phase].get(source, 0) + inside

    def drawn(
        self, position: SupportsIndex, without: Sequence[tuple[int, int]] = ()
    ) -> dict[str, SourceDraws]:
        """Put the shares of the first ``position`` samples beside what the recipe promised.

        Windows ``without``, each a first position and a count, were left out of them.
        """
        total = operator.index(position)
        taken = max(total - sum(left_out for _, left_out in without), 1)
        drawn = {}
        for name, promised in self._promised(total).items():
            count = self.count(name, total)
            for first, left_out in without:
                count -= self.count(name, first + left_out) - self.count(name, first)
            drawn[name] = SourceDraws(
                promised_share=float(promised / max(total, 1)),
                share=count / taken,
                samples=count,
                epochs=count / max(self._samples[name], 1),
            )
        return drawn

    def _promised(self, total: int) -> dict[str, Fraction]:
        """Multiply each phase's shares, divided by their sum, by its part of ``total``."""
        promised = dict.fromkeys(self._samples, Fraction(0))
        starts = [min(start, total) for start in self._starts]
        for phase, (start, end) in zip(self._phases, pairwise([*starts, total]), strict=True):
            exact = {name: exact_share(share) for name, share in phase.shares.items()}
            whole = sum(exact.values(), Fraction(0))
            for name, share in exact.items():
                promised[name] += share / whole * (end - start)
        return promised


def _check_starts(phases: Sequence[Phase]) -> None:
    if not phases or phases[0].first_sample != 0:
        problem = "no shares hold from the first sample on"
        raise RecipeError("data.phases", problem, "let a phase begin at 0")
    for earlier, later in pairwise(phases):
        if later.first_sample <= earlier.first_sample:
            raise RecipeError(
                later.path,
                f"begins at sample {later.first_sample:,}, not after the phase before it, "
                f"which begins at {earlier.first_sample:,}",
                "let it begin later, or leave it out",
            )


def _check_shares(phase: Phase, samples: Mapping[str, int]) -> None:
    for name, share in phase.shares.items():
        path = f"{phase.path}.{name}"
        if name not in samples:
            remedy = f"known sources: {', '.join(sorted(samples)) or 'none'}"
            raise RecipeError(path, f"there is no source {name!r}", remedy)
        if not (math.isfinite(share) and share >= 0):
            raise RecipeError(path, f"{share} is not a share", "give a number from 0 to 1")
        if share > 0 and samples[name] < 1:
            raise RecipeError(
                path,
                f"{share} of the samples, but the source has not one whole sample",
                "give it more text, shorten budget.sequence_length, or set the share to 0",
            )
    total = sum((exact_share(share) for share in phase.shares.values()), Fraction(0))
    if abs(total - 1) > SUM_TOLERANCE:
        raise RecipeError(
            phase.path,
            f"the shares add up to {float(total):.9g}, not to 1 within 1e-6",
            "divide each of them by that sum",
        )
