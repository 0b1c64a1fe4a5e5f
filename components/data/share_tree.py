"""Draws dealt to sources by their shares, as a function of how many came before.

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
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


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
    """Deal an endless row of draws to sources; the order of the mapping has no effect."""

    def __init__(self, *, shares: Mapping[str, float]) -> None:
        """Build the tree; at least one share is above 0, and their sum stands for all draws."""
        exact = {name: exact_share(share) for name, share in shares.items() if share > 0}
        self._root = _huffman(exact)
        self._paths: dict[str, tuple[tuple[_Split, bool], ...]] = {}
        self._trace(self._root, ())

    @property
    def sources(self) -> tuple[str, ...]:
        """Those that are drawn at all."""
        return tuple(self._paths)

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
        if source not in self._paths:
            return 0
        draws = position
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
