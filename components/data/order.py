"""The order of the samples as a function of (seed, position).

A binary tree over the sources decides which source a position draws from: of the first ``n``
draws that reach a node, its left side gets ``n x weight`` rounded to the nearest integer, the
right side the rest. Both counts never fall as ``n`` grows, so "the next draw" is well defined
and nothing is stored.

Why every prefix is within two samples of the exact shares: each node makes a rounding error of
at most 1/2, which shrinks on its way down with the weights. A leaf of weight ``w`` is off by at
most ``(1 + w/w1 + w/w2 + ...) / 2``, where ``w1, w2, ...`` are the weights of the nodes
above it. In a Huffman tree these grow at least as the Fibonacci numbers (a node's sibling is no
lighter than the node's children, for the two lightest were merged first), whose reciprocals add
up to 3.36: the error stays below 1.68.
"""

import heapq
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsIndex

from components.data.permutation import permute, round_keys
from components.errors import RecipeError

PATH = "data.shares"
SUM_TOLERANCE = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class SampleId:
    """Name one sample: ``index`` counts windows of the source's token file."""

    source: str
    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class _Split:
    """A node of the tree; ``numerator / denominator`` is its left side's part of its draws."""

    left: "_Split | str"
    right: "_Split | str"
    numerator: int
    denominator: int

    def left_draws(self, draws: int) -> int:
        return (2 * draws * self.numerator + self.denominator) // (2 * self.denominator)


class SampleOrder:
    """Say which sample stands at any position of an endless run, in O(1) memory.

    Each source is drawn without replacement: every epoch of it is a fresh permutation.
    """

    def __init__(
        self, *, shares: Mapping[str, float], samples: Mapping[str, int], seed: int
    ) -> None:
        """Build the tree of sources; the order of the mappings has no effect.

        Raises:
            RecipeError: shares that are negative, do not add up to 1, name an unknown source,
                or give a part to a source without a whole sample.
        """
        _check_shares(shares, samples)
        self._samples = dict(samples)
        self._seed = seed
        self._root = _huffman({
            name: _exact(share) for name, share in shares.items() if share > 0
        })
        self._paths: dict[str, tuple[tuple[_Split, bool], ...]] = {}
        self._trace(self._root, ())

    def __getitem__(self, position: SupportsIndex) -> SampleId:
        """Find the sample at ``position``.

        Raises:
            IndexError: the position is negative.
        """
        draws = operator.index(position)
        if draws < 0:
            raise IndexError(f"position {position} is before the first sample")
        node = self._root
        while isinstance(node, _Split):
            before = node.left_draws(draws)
            if node.left_draws(draws + 1) > before:
                node, draws = node.left, before
            else:
                node, draws = node.right, draws - before
        size = self._samples[node]
        epoch, index = divmod(draws, size)
        return SampleId(node, epoch, permute(index, size, round_keys(self._seed, node, epoch)))

    def count(self, source: str, position: SupportsIndex) -> int:
        """Count the samples of ``source`` among the first ``position``."""
        if source not in self._paths:
            return 0
        draws = operator.index(position)
        for split, is_left in self._paths[source]:
            left = split.left_draws(draws)
            draws = left if is_left else draws - left
        return draws

    def _trace(self, node: _Split | str, path: tuple[tuple[_Split, bool], ...]) -> None:
        if isinstance(node, str):
            self._paths[node] = path
            return
        self._trace(node.left, (*path, (node, True)))
        self._trace(node.right, (*path, (node, False)))


def _exact(share: float) -> Fraction:
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
        part = heavy_weight / weight
        heapq.heappush(
            heap, (weight, tie, _Split(heavy, light, part.numerator, part.denominator))
        )
    return heap[0][2]


def _check_shares(shares: Mapping[str, float], samples: Mapping[str, int]) -> None:
    for name, share in shares.items():
        if name not in samples:
            raise RecipeError(
                f"{PATH}.{name}",
                f"there is no source {name!r}",
                f"known sources: {', '.join(sorted(samples)) or 'none'}",
            )
        if not (math.isfinite(share) and share >= 0):
            raise RecipeError(
                f"{PATH}.{name}", f"{share} is not a share", "give a number from 0 to 1"
            )
        if share > 0 and samples[name] < 1:
            raise RecipeError(
                f"{PATH}.{name}",
                f"{share} of the samples, but the source has not one whole sample",
                "give it more text, shorten budget.sequence_length, or set the share to 0",
            )
    total = sum((_exact(share) for share in shares.values()), Fraction(0))
    if abs(total - 1) > SUM_TOLERANCE:
        raise RecipeError(
            PATH,
            f"the shares add up to {float(total):.9g}, not to 1 within 1e-6",
            "divide each of them by that sum",
        )
