"""Causal self-attention with grouped key-value heads, and what the layers of a pass share.

The slopes of the positions lower the scores of distant keys; which keys a query sees at all is
in `components.model.masks`. Two forms say both: a function and blocks for ``flex_attention``,
and, on a CPU, a dense tensor that is added to the scores.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from components.attention_backends import (
    ACCELERATORS,
    AttentionCase,
    Backend,
    check_order,
    serving,
)
from components.attention_windows import Window
from components.config.model_spec.attention import AttentionSpec
from components.model import attention_kernels
from components.model.attention_kernels import ScoreChange
from components.model.masks import CausalMask
from components.model.positions import Placement
from components.model.products import Linear, ResidualLinear, product_dtype
from components.ranges import BelowOne

Heads = tuple[int, int]  # first, and one after the last


class QueryBlock(NamedTuple):
    """Some of the ``queries`` at hand, against the first ``keys`` places of the sequence."""

    queries: range
    keys: int


class ForwardScope:
    """What the layers of one forward pass share, computed once; plain, like ``Placement``.

    ``documents`` are those of the whole sequence, of which the tokens at hand may be a part of
    its ``length``; ``mask`` is what an earlier stage has made of them.
    """

    def __init__(
        self,
        *,
        placement: Placement,
        documents: Int[Tensor, "batch whole"] | None,
        mask: CausalMask | None = None,
        length: int | None = None,
    ) -> None:
        self.placement = placement
        self.mask = mask or CausalMask(places=placement.places, documents=documents)
        self.length = length or len(placement.places)
        self._dense: dict[tuple[Heads, torch.dtype, QueryBlock | None], Tensor] = {}
        self._narrower: dict[int, ForwardScope] = {}

    def within(self, window: int | None) -> "ForwardScope":
        """Return what the layers with this window share, of ``None`` those without one.

        A window as long as the sequence hides nothing.
        """
        if window is None or (window >= self.length and self.placement.local is None):
            return self
        if window not in self._narrower:
            self._narrower[window] = ForwardScope(
                placement=self.placement.in_windows,
                documents=None,
                mask=self.mask.within(window) if window < self.length else self.mask,
                length=self.length,
            )
        return self._narrower[window]

    @property
    def is_plain(self) -> bool:
        """Whether attention is causal and nothing else, which every kernel knows how to do."""
        return self.placement.slopes is None and self.mask.starts is None

    def turn(self, heads: Tensor) -> Tensor:
        """Rotate queries or keys, (batch, seq, heads, head_dim), where the positions do."""
        rotation = self.placement.rotation
        return heads if rotation is None else rotation(heads)

    def dense(
        self, heads: Heads, dtype: torch.dtype, block: QueryBlock | None = None
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        """Return what is added to the scores of these heads: minus infinity hides a key.

        Without a ``block`` queries and keys are the tokens at hand.
        """
        known = heads, dtype, block
        if known in self._dense:
            return self._dense[known]
        places = self.placement.places
        assert places.device.type not in ACCELERATORS, "length times length numbers"
        whole = block or QueryBlock(queries=range(len(places)), keys=len(places))
        queries = slice(whole.queries.start, whole.queries.stop)
        change = torch.zeros((), device=places.device)
        if self.placement.slopes is not None:
            behind = places[queries, None] - torch.arange(whole.keys, device=places.device)
            change = -self.placement.slopes[slice(*heads), None, None] * behind
        hidden = ~self.mask.dense(queries, whole.keys)
        self._dense[known] = change.masked_fill(hidden, -math.inf).to(dtype)
        return self._dense[known]

    def score_change(self, heads: Heads) -> ScoreChange | None:
        """Return the discount as a function of one score, for ``flex_attention``."""
        if self.placement.slopes is None:
            return None
        slopes, places = self.placement.slopes[slice(*heads)], self.placement.places

        def discounted(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
        ) -> Tensor:
            return score - slopes[head] * (places[query] - key)

        return discounted


class Attention(nn.Module):
    """Attend to all earlier tokens; several query heads share a key and a value head.

    Grouping is https://arxiv.org/abs/2305.13245, section 2.2: query head ``i`` reads group
    ``i // (num_heads / num_kv_heads)``. A rank may hold some heads, from ``first_head`` on.
    ``qk_norm`` normalizes queries and keys before they are turned: over their whole projected
    width (OLMoE, https://arxiv.org/abs/2409.02060, section 4.2.5), or ``qk_norm_over`` each
    head by itself, with the same weights in all (Qwen3, https://arxiv.org/abs/2505.09388,
    section 2). ``windows`` are those of all layers (`components.attention_windows`), ``window``
    is this one's; ``turns`` says whether this layer rotates where the positions do. Scores are
    divided by the root of ``scale_dim``, or of ``head_dim`` where there is none.

    ``layer_scaling`` records that the published run divided scores by the layer's number and
    multiplied them back in the softmax (Megatron): in float32 scores, as here, that cancels.
    """

    first_head = 0
    turns = True
    windows: tuple[Window, ...] = ("full",)
    window: int | None = None

    def __init__(self, spec: AttentionSpec, *, dim: int) -> None:
        super().__init__()
        head_dim, scale_dim, bias = spec.head_dim, spec.scale_dim, spec.bias
        query_dim, key_dim = spec.num_heads * head_dim, spec.num_kv_heads * head_dim
        self.num_heads = spec.num_heads
        self.head_dim = head_dim
        self.layer_scaling = spec.layer_scaling
        # Queries are multiplied, as Gemma's authors do; kernels divide by the root of head_dim.
        self.query_scale = None if scale_dim is None else math.sqrt(head_dim / scale_dim)
        self.windows = spec.windows
        self.query = Linear(dim, query_dim, bias=bias)
        self.key = Linear(dim, key_dim, bias=bias)
        self.value = Linear(dim, key_dim, bias=bias)
        self.norms_heads = spec.norms_heads
        widths = (head_dim, head_dim) if self.norms_heads else (query_dim, key_dim)
        norms = [spec.qk_norm.build(dim=width) if spec.qk_norm else None for width in widths]
        self.query_norm, self.key_norm = norms
        self.core = AttentionCore(dropout=spec.dropout, backends=spec.backends)
        self.output = ResidualLinear(query_dim, dim, bias=bias)

    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        query, key = self.query(hidden), self.key(hidden)
        if not self.norms_heads:
            query, key = self._normalized(query, key)
        query, key = self._heads(query), self._heads(key)
        if self.norms_heads:
            query, key = self._normalized(query, key)
        if self.turns:
            query, key = scope.turn(query), scope.turn(key)
        if self.query_scale is not None:
            query = query * self.query_scale
        mixed = self.core(
            query.transpose(1, 2),  # (batch, heads, seq, head_dim)
            key.transpose(1, 2),
            self._heads(self.value(hidden)).transpose(1, 2),
            scope,
            first_head=self.first_head,
        )
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(-2)))

    @property
    def turned_dim(self) -> int:
        """How many channels of a head positions may rotate."""
        return self.head_dim

    def prepare(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> None:
        """Let the core make what all layers share."""
        self.core.prepare(hidden, scope, head_dim=self.head_dim)

    def _normalized(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            return query, key
        return self.query_norm(query), self.key_norm(key)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim)


def device_kind(tensor: Tensor) -> str:
    """Return the kind of device whose kernels attend; a dry run answers for its own."""
    return tensor.device.type


class AttentionCore(nn.Module):
    """Mix values by the softmax of scaled scores; no parameters, so it is easily replaced.

    The first of ``backends`` that serves is taken, `components.attention_backends` says which.

    Raises:
        RecipeError: an order that is none; when called, one that has no kernel for the mask.
    """

    ranks = 1  # whose keys are gathered
    in_one_graph = True  # whether torch's compiler takes it in one piece

    def __init__(self, *, dropout: BelowOne, backends: Sequence[Backend]) -> None:
        super().__init__()
        check_order(backends)
        self.dropout = dropout
        self.backends = tuple(backends)

    def prepare(
        self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope, *, head_dim: int
    ) -> None:
        """Make what all layers share, before the first: within a graph each would make it."""
        kind, dtype = device_kind(hidden), product_dtype(hidden)
        if "flex" in self.backends and any(
            self._kernels(kind, dtype, head_dim, grouped, scope)[:1] == ("flex",)
            for grouped in (False, True)  # tensor ranks may have too few heads for groups
        ):
            self._blocks(scope)

    def forward(
        self,
        query: Float[Tensor, "batch heads seq head_dim"],
        key: Float[Tensor, "batch kv_heads seq head_dim"],
        value: Float[Tensor, "batch kv_heads seq value_dim"],
        scope: ForwardScope,
        *,
        first_head: int,
    ) -> Float[Tensor, "batch heads seq value_dim"]:
        heads = (first_head, first_head + query.shape[1])
        kernels = self._kernels_for(query, key, scope)
        if kernels[:1] == ("flex",):
            return self._flex(query, key, value, scope, heads)
        return attention_kernels.scaled_dot_product(
            query,
            key,
            value,
            kernels=kernels,
            mask=None if scope.is_plain else scope.dense(heads, query.dtype),
            dropout=self._dropped,
        )

    def _flex(
        self, query: Tensor, key: Tensor, value: Tensor, scope: ForwardScope, heads: Heads
    ) -> Tensor:
        return attention_kernels.flex(
            query,
            key,
            value,
            change=scope.score_change(heads),
            blocks=self._blocks(scope),
            dropout=self._dropped,
        )

    @property
    def _dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def _blocks(self, scope: ForwardScope) -> BlockMask:
        return scope.mask.blocks(len(scope.placement.places) * self.ranks)

    def _kernels_for(
        self, query: Tensor, key: Tensor, scope: ForwardScope
    ) -> tuple[Backend, ...]:
        grouped, width = query.shape[1] != key.shape[1], query.shape[-1]
        return self._kernels(device_kind(query), product_dtype(query), width, grouped, scope)

    def _kernels(
        self, kind: str, dtype: torch.dtype, head_dim: int, grouped: bool, scope: ForwardScope
    ) -> tuple[Backend, ...]:
        mask: Literal["causal", "offset", "structured"] = "structured"
        if scope.is_plain:
            mask = "causal" if self.ranks == 1 else "offset"
        case = AttentionCase(
            device=kind,
            dtype=str(dtype).removeprefix("torch."),
            head_dim=head_dim,
            grouped=grouped,
            dropout=self._dropped > 0,
            mask=mask,
        )
        lacking = attention_kernels.lacking(kind)
        return serving([name for name in self.backends if name not in lacking], case)
