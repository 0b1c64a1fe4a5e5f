"""Sample order: a function of (seed, position), computed by a keyed permutation.

The index is written as two digits, ``low`` below ``columns`` and ``high`` below ``rows``, where
``rows x columns`` is just above ``size``. Each round adds a keyed hash of one digit to the
other, which permutes the rectangle (a generalized Feistel network: Black and Rogaway, "Ciphers
with Arbitrary Finite Domains", 2002, section 5). An image outside ``range(size)`` is permuted
again until it is inside ("cycle walking", section 4 there).

A run is a sequence of phases, each with its own shares. Inside a phase, every prefix keeps the
shares within two samples. Draws of a source are counted over all phases, so no sample repeats
before all samples of its source have been drawn.
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
    """Derive one 64-bit key per round from the seed, source and epoch of a permutation."""
    name = f"{seed}\0{epoch}\0{source}".encode()
    digest = hashlib.blake2b(name, digest_size=8 * NUM_ROUNDS).digest()
    return struct.unpack(f"<{NUM_ROUNDS}Q", digest)


def permute_index(index: int, size: int, keys: tuple[int, ...]) -> int:
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
    """Hash 64 bits (Stafford's variant 13 of MurmurHash3's finalizer, 2011)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class _Split:
    """A tree node; its left side gets ``numerator / denominator`` of the node's draws."""

    left: "_Split | str"
    right: "_Split | str"
    numerator: int
    denominator: int

    def left_draws(self, draws: int) -> int:
        return (2 * draws * self.numerator + self.denominator) // (2 * self.denominator)


class ShareTree:
    """Assigns an endless sequence of draws to sources; the mapping's order has no effect.

    A binary tree over the sources decides which source a position draws from. Of the first
    ``n`` draws that reach a node, the left side gets ``n x weight``, rounded to the nearest
    integer, and the right side gets the rest. Neither count decreases as ``n`` grows, so "the
    next draw" is well defined. ``paths`` has the path to each source with a share above 0.

    Every prefix is within two samples of the exact shares. Each node makes a rounding error of
    at most 1/2, which the weights below it reduce. A leaf of weight ``w`` is off by at most
    ``(1 + w/w1 + w/w2 + ...) / 2``, where ``w1, w2, ...`` are the weights of the nodes above
    it. In a Huffman tree these grow at least like the Fibonacci numbers: a node's sibling is
    not lighter than the node's children, because the two lightest are merged first. The
    reciprocals of the Fibonacci numbers sum to 3.36, so the error stays below 1.68.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        exact = {name: exact_share(share) for name, share in shares.items() if share > 0}
        self._root = _huffman(exact)
        self.paths: dict[str, tuple[tuple[_Split, bool], ...]] = {}
        self._trace(self._root, ())

    def draw_source(self, position: int) -> tuple[str, int]:
        """Return the source at ``position`` and the number of its earlier draws."""
        node, draws = self._root, position
        while isinstance(node, _Split):
            before = node.left_draws(draws)
            if node.left_draws(draws + 1) > before:
                node, draws = node.left, before
            else:
                node, draws = node.right, draws - before
        return node, draws

    def count_draws(self, source: str, position: int) -> int:
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
    """Return a share as the exact decimal: 0.1 is one tenth, not the nearest float."""
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


@dataclass(frozen=True, slots=True)
class SampleId:
    """Identifier of a sample; ``index`` counts the windows of the source's tokens."""

    source: str
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class SourceDraws:
    """Draws of a source: its promised share, and its actual share, samples and epochs."""

    promised_share: float
    share: float
    samples: int
    epochs: float


@dataclass(frozen=True, slots=True)
class Phase:
    """Shares that apply from ``first_sample`` on; ``path`` is their YAML path in the recipe."""

    first_sample: int
    shares: Mapping[str, float]
    path: str


class SampleOrder:
    """Sample order of an endless run: returns the sample at any position, in O(1) memory."""

    def __init__(
        self,
        *,
        phases: Sequence[Phase],
        samples: Mapping[str, int],
        seed: int,
        first_epochs: Mapping[str, int] | None = None,
    ) -> None:
        """Build a source tree for each phase; the order of the mappings has no effect.

        The epochs of a source start at ``first_epochs``, if earlier cuts have drawn from it.
        Phases out of order, or a source without a whole sample, are a RecipeError.
        """
        _check_starts(phases)
        for phase in phases:
            _check_shares(phase, samples)
        self._phases, self._samples, self._seed = tuple(phases), dict(samples), seed
        self._first_epochs = dict(first_epochs or {})
        self._starts = [phase.first_sample for phase in phases]
        self._trees = [ShareTree(phase.shares) for phase in phases]
        self._before: list[dict[str, int]] = [{}]  # each source's draws before each phase
        for tree, (start, end) in zip(self._trees, pairwise(self._starts), strict=False):
            counts = dict(self._before[-1])
            for source in tree.paths:
                counts[source] = counts.get(source, 0) + tree.count_draws(source, end - start)
            self._before.append(counts)

    def __getitem__(self, position: SupportsIndex) -> SampleId:
        """Return the sample at ``position``."""
        place = operator.index(position)
        if place < 0:
            raise IndexError(f"position {position} is before the first sample")
        phase = bisect_right(self._starts, place) - 1
        source, draws = self._trees[phase].draw_source(place - self._starts[phase])
        draws += self._before[phase].get(source, 0)
        size = self._samples[source]
        epoch, index = divmod(draws, size)
        epoch += self._first_epochs.get(source, 0)
        keys = round_keys(self._seed, source, epoch)
        return SampleId(source, epoch, permute_index(index, size, keys))

    def count_samples(self, source: str, position: SupportsIndex) -> int:
        """Count the samples of ``source`` among the first ``position``."""
        place = operator.index(position)
        phase = max(0, bisect_right(self._starts, place) - 1)
        inside = self._trees[phase].count_draws(source, place - self._starts[phase])
        return self._before[phase].get(source, 0) + inside

    def epochs_after(self, position: SupportsIndex) -> dict[str, int]:
        """Count the epochs of each source that start in the first ``position`` samples."""
        return {
            name: self._first_epochs.get(name, 0)
            - (-self.count_samples(name, position) // size)
            for name, size in self._samples.items()
            if size
        }

    def summarize_draws(
        self, position: SupportsIndex, without: Sequence[tuple[int, int]] = ()
    ) -> dict[str, SourceDraws]:
        """Return promised and actual shares of the first ``position`` samples.

        Each window in ``without`` is (first position, count) and was skipped.
        """
        total = operator.index(position)
        total_drawn = max(total - sum(left_out for _, left_out in without), 1)
        drawn = {}
        for name, promised in self._promised(total).items():
            count = self.count_samples(name, total)
            for first, left_out in without:
                count -= self.count_samples(name, first + left_out) - self.count_samples(
                    name, first
                )
            drawn[name] = SourceDraws(
                promised_share=float(promised / max(total, 1)),
                share=count / total_drawn,
                samples=count,
                epochs=count / max(self._samples[name], 1),
            )
        return drawn

    def shares_at(self, position: SupportsIndex) -> dict[str, float]:
        """Return each source's share in the phase of ``position``, 0 if not drawn."""
        phase = self._phases[bisect_right(self._starts, operator.index(position)) - 1]
        exact = _exact_shares(phase)
        return {name: float(exact.get(name, 0)) for name in self._samples}

    def _promised(self, total: int) -> dict[str, Fraction]:
        """Return the samples promised to each source: phase shares times phase lengths."""
        promised = dict.fromkeys(self._samples, Fraction(0))
        starts = [min(start, total) for start in self._starts]
        for phase, (start, end) in zip(self._phases, pairwise([*starts, total]), strict=True):
            for name, share in _exact_shares(phase).items():
                promised[name] += share * (end - start)
        return promised


def _exact_shares(phase: Phase) -> dict[str, Fraction]:
    """Return the shares of a phase, divided by their sum."""
    exact = {name: exact_share(share) for name, share in phase.shares.items()}
    total = sum(exact.values(), Fraction(0))
    return {name: share / total for name, share in exact.items()}


def _check_starts(phases: Sequence[Phase]) -> None:
    assert phases, "no phase"
    assert phases[0].first_sample == 0, "no shares for the first sample"
    for earlier, later in pairwise(phases):
        if later.first_sample <= earlier.first_sample:
            problem = f"starts at sample {later.first_sample:,}, not after the phase before it"
            before = f"which starts at {earlier.first_sample:,}"
            remedy = "set a later start, or remove the phase"
            raise RecipeError(later.path, f"{problem}, {before}", remedy)


def _check_shares(phase: Phase, samples: Mapping[str, int]) -> None:
    """Check that a source with a share has a sample, which is known only after reading it."""
    for name, share in phase.shares.items():
        if share > 0 and samples[name] < 1:
            problem = f"{share} of the samples, but the source is shorter than one sample"
            remedy = "add text to it, reduce budget.sequence_length, or set the share to 0"
            raise RecipeError(f"{phase.path}.{name}", problem, remedy)
