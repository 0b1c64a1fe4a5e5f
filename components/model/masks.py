"""What each token may attend to, and at what discount; computed once for all layers.

Attention is causal. Documents, where they are given, part a packed sequence, and the slopes of
the positions lower the scores of distant keys. Two forms say the same: a dense tensor that is
added to the scores, and the functions and block mask that ``flex_attention`` takes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from components.model.positions import Placement

Heads = tuple[int, int]  # first, and one after the last
ScoreChange = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class QueryBlock(NamedTuple):
    """Some of the ``queries`` at hand, against the first ``keys`` places of the sequence."""

    queries: range
    keys: int


class ForwardScope:
    """What the layers of one forward pass share; a plain class, like ``Placement``.

    ``documents`` are those of the whole sequence, of which the tokens at hand may be a part.
    """

    def __init__(
        self, *, placement: Placement, documents: Int[Tensor, "batch whole"] | None
    ) -> None:
        self.placement = placement
        self.documents = documents
        self._dense: dict[tuple[Heads, torch.dtype, QueryBlock | None], Tensor] = {}
        self._blocks: BlockMask | None = None

    @property
    def is_plain(self) -> bool:
        """Whether attention is causal and nothing else, which every kernel knows how to do."""
        return self.placement.slopes is None and self.documents is None

    def turn(
        self, heads: Float[Tensor, "batch seq heads head_dim"]
    ) -> Float[Tensor, "batch seq heads head_dim"]:
        """Rotate queries or keys, where the positions do."""
        rotation = self.placement.rotation
        return heads if rotation is None else rotation(heads)

    def dense(
        self, heads: Heads, dtype: torch.dtype, block: QueryBlock | None = None
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        """Return what is added to the scores of these heads: minus infinity hides a key.

        Without a ``block`` queries and keys are the tokens at hand.
        """
        known = heads, dtype, block
        if known not in self._dense:
            self._dense[known] = self._make_dense(heads, block).to(dtype)
        return self._dense[known]

    def _make_dense(self, heads: Heads, block: QueryBlock | None) -> Tensor:
        queries = keys = self.placement.places
        if block is not None:
            queries = queries[block.queries.start : block.queries.stop]
            keys = torch.arange(block.keys, device=queries.device)
        behind = queries[:, None] - keys  # (query, key)
        hidden = (behind < 0)[None, None]
        if self.documents is not None:
            theirs = self.documents[:, queries], self.documents[:, keys]
            hidden = hidden | (theirs[0][:, None, :, None] != theirs[1][:, None, None, :])
        change = torch.zeros((), device=queries.device)
        if self.placement.slopes is not None:
            change = -self.placement.slopes[slice(*heads), None, None] * behind
        return change.masked_fill(hidden, -math.inf)

    def score_change(self, heads: Heads) -> ScoreChange | None:
        """Return the discount as a function of one score, for ``flex_attention``."""
        if self.placement.slopes is None:
            return None
        slopes, places = self.placement.slopes[slice(*heads)], self.placement.places

        def discounted(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
        ) -> Tensor:
            return score - slopes[head] * (places[query] - places[key])

        return discounted

    def blocks(self) -> BlockMask:
        """Return the blocks that hold a visible pair, so that the others are skipped.

        The tokens at hand must be the whole sequence.
        """
        if self._blocks is None:
            places, documents = self.placement.places, self.documents

            def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                causal = places[query] >= places[key]
                if documents is None:
                    return causal
                return causal & (documents[batch, query] == documents[batch, key])

            batch = None if documents is None else len(documents)
            length = len(places)
            device = str(places.device)
            self._blocks = create_block_mask(visible, batch, None, length, length, device)
        return self._blocks
