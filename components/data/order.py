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
import heapq
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


@dataclass(frozen=True, slots=True)
class _Split:
    """A node of the tree; ``numerator / denominator`` is its left side's part of its draws."""

    left: "_Split | str"
    right: "_Split | str"
    numerator: int
    denominator: int

    def left_draws(self, draws: int) -> int:
        return (2 * draws * self.numerator + self.denominator) // (2 * self.denominator)


class ShareTree:
    """Deal an endless row of draws to sources; the order of the mapping has no effect.

    A binary tree over the sources decides which source a position draws from: of the first
    ``n`` draws that reach a node, its left side gets ``n x weight`` rounded to the nearest
    integer, the right side the rest. Both counts never fall as ``n`` grows, so "the next draw"
    is well defined and nothing is stored. ``paths`` lead to the sources that are drawn at all.

    Why every prefix is within two samples of the exact shares: each node makes a rounding error
    of at most 1/2, which shrinks on its way down with the weights. A leaf of weight ``w`` is
    off by at most ``(1 + w/w1 + w/w2 + ...) / 2``, where ``w1, w2, ...`` are the weights of the
    nodes above it. In a Huffman tree these grow at least as the Fibonacci numbers (a node's
    sibling is no lighter than the node's children, for the two lightest were merged first),
    whose reciprocals add up to 3.36: the error stays below 1.68.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        exact = {name: exact_share(share) for name, share in shares.items() if share > 0}
        self._root = _huffman(exact)
        self.paths: dict[str, tuple[tuple[_Split, bool], ...]] = {}
        self._trace(self._root, ())

    def draw(self, position: int) -> tuple[str, int]:
        """Name the source at ``position``, and count its draws before that."""
        node, draws = self._root, position
        while isinstance(node, _Split):
            before = node.left_draws(draws)
            if node.left_draws(draws + 1) > before:
                node, draws = node.left, before
            else:
                node, draws = node.right, draws - before
        return node, draws

    def count(self, source: str, position: int) -> int:
        """Count the draws of ``source`` among the first ``position``."""
        if source not in self.paths:
            return 0
        draws = position
        for split, is_left in self.paths[source]:
            left = split.left_draws(draws)
            draws = left if is_left else draws - left
        return draws

    def _trace(self, node: _Split | str, path: tuple[tuple[_Split, bool], ...]) -> None:
        if isinstance(node, str):
            self.paths[node] = path
            return
        self._trace(node.left, (*path, (node, True)))
        self._trace(node.right, (*path, (node, False)))


def exact_share(share: float) -> Fraction:
    """Take a share as it is written: 0.1 is a tenth, not the float nearest to it."""
    return Fraction(repr(float(share)))


def _huffman(weights: Mapping[str, Fraction]) -> _Split | str:
    heap: list[tuple[Fraction, int, _Split | str]] = [
        (weight, tie, name) for tie, (name, weight) in enumerate(sorted(weights.items()))
    ]
    heapq.heapify(heap)
    for tie in range(len(heap), 2 * len(heap) - 1):
        light_weight, _, light = heapq.heappop(heap)
        heavy_weight, _, heavy = heapq.heappop(heap)
        weight = light_weight + heavy_weight
        split = _Split(heavy, light, *(heavy_weight / weight).as_integer_ratio())
        heapq.heappush(heap, (weight, tie, split))
    return heap[0][2]


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
    """Sample order of an endless run: which sample stands at a position, in O(1) memory."""

    def __init__(
        self,
        *,
        phases: Sequence[Phase],
        samples: Mapping[str, int],
        seed: int,
        first_epochs: Mapping[str, int] | None = None,
    ) -> None:
        """Build a tree of sources for each phase; the order of the mappings has no effect.

        A source's epochs are counted from ``first_epochs`` on, where others went before.

        Raises:
            RecipeError: phases that do not follow one another from sample 0 on; shares that are
                negative, do not add up to 1, name an unknown source, or give a part to a
                source without a whole sample.
        """
        _check_starts(phases)
        for phase in phases:
            _check_shares(phase, samples)
        self._phases, self._samples, self._seed = tuple(phases), dict(samples), seed
        self._first_epochs = dict(first_epochs or {})
        self._starts = [phase.first_sample for phase in phases]
        self._trees = [ShareTree(phase.shares) for phase in phases]
        self._before: list[dict[str, int]] = [{}]  # draws of each source, by phase
        for tree, (start, end) in zip(self._trees, pairwise(self._starts), strict=False):
            counts = dict(self._before[-1])
            for source in tree.paths:
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
        epoch += self._first_epochs.get(source, 0)
        keys = round_keys(self._seed, source, epoch)
        return SampleId(source, epoch, permute(index, size, keys))

    def count(self, source: str, position: SupportsIndex) -> int:
        """Count the samples of ``source`` among the first ``position``."""
        place = operator.index(position)
        phase = max(0, bisect_right(self._starts, place) - 1)
        inside = self._trees[phase].count(source, place - self._starts[phase])
        return self._before[phase].get(source, 0) + inside

    def epochs_after(self, position: SupportsIndex) -> dict[str, int]:
        """Count the epochs of each source that the first ``position`` samples have begun."""
        return {
            name: self._first_epochs.get(name, 0) - (-self.count(name, position) // size)
            for name, size in self._samples.items()
            if size
        }

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

    def shares_at(self, position: SupportsIndex) -> dict[str, float]:
        """Give the share of each source in the phase of ``position``; 0 if not drawn there."""
        phase = self._phases[bisect_right(self._starts, operator.index(position)) - 1]
        exact = _exact_shares(phase)
        return {name: float(exact.get(name, 0)) for name in self._samples}

    def _promised(self, total: int) -> dict[str, Fraction]:
        """Multiply each phase's shares by its part of ``total``."""
        promised = dict.fromkeys(self._samples, Fraction(0))
        starts = [min(start, total) for start in self._starts]
        for phase, (start, end) in zip(self._phases, pairwise([*starts, total]), strict=True):
            for name, share in _exact_shares(phase).items():
                promised[name] += share * (end - start)
        return promised


def _exact_shares(phase: Phase) -> dict[str, Fraction]:
    """Divide the shares of a phase by their sum."""
    exact = {name: exact_share(share) for name, share in phase.shares.items()}
    whole = sum(exact.values(), Fraction(0))
    return {name: share / whole for name, share in exact.items()}


def _check_starts(phases: Sequence[Phase]) -> None:
    if not phases or phases[0].first_sample != 0:
        problem = "no shares hold from the first sample on"
        raise RecipeError("data.phases", problem, "let a phase begin at 0")
    for earlier, later in pairwise(phases):
        if later.first_sample <= earlier.first_sample:
            problem = f"begins at sample {later.first_sample:,}, not after the phase before it"
            before = f"which begins at {earlier.first_sample:,}"
            remedy = "let it begin later, or leave it out"
            raise RecipeError(later.path, f"{problem}, {before}", remedy)


def _check_shares(phase: Phase, samples: Mapping[str, int]) -> None:
    for name, share in phase.shares.items():
        path = f"{phase.path}.{name}"
        if name not in samples:
            remedy = f"known sources: {', '.join(sorted(samples)) or 'none'}"
            raise RecipeError(path, f"there is no source {name!r}", remedy)
        if not (math.isfinite(share) and share >= 0):
            raise RecipeError(path, f"{share} is not a share", "give a number from 0 to 1")
        if share > 0 and samples[name] < 1:
            problem = f"{share} of the samples, but the source has not one whole sample"
            remedy = "give it more text, shorten budget.sequence_length, or set the share to 0"
            raise RecipeError(path, problem, remedy)
    total = sum((exact_share(share) for share in phase.shares.values()), Fraction(0))
    if abs(total - 1) > SUM_TOLERANCE:
        problem = f"the shares add up to {float(total):.9g}, not to 1 within 1e-6"
        raise RecipeError(phase.path, problem, "divide each of them by that sum")
