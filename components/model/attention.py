"""Causal self-attention with grouped key-value heads, and the context that layers share.

ALiBi slopes lower the scores of distant keys. Slopes and mask have two forms: a function and
blocks for ``flex_attention``, and, on a CPU, a dense tensor that is added to the scores.
"""

import math
from collections.abc import Mapping, Sequence
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
    select_backends,
)
from components.attention_windows import Window
from components.config.model_spec.attention import AttentionSpec
from components.model import attention_kernels
from components.model.attention_kernels import ScoreChange
from components.model.linear import Linear, ResidualLinear, product_dtype
from components.model.masks import CausalMask
from components.model.positions import PositionEncoding
from components.ranges import BelowOne

HeadRange = tuple[int, int]  # first head, last head + 1


class QueryBlock(NamedTuple):
    """Part of this rank's ``queries``, and the first ``keys`` positions of the sequence."""

    queries: range
    keys: int


class AttentionContext:
    """Attention context: positions and masks that the layers of one forward pass share.

    ``documents`` covers the whole sequence of ``length`` tokens; this rank may have only some
    of the tokens. ``mask`` is the mask that an earlier stage made from ``documents``.
    """

    def __init__(
        self,
        *,
        encoding: PositionEncoding,
        documents: Int[Tensor, "batch whole"] | None,
        mask: CausalMask | None = None,
        length: int | None = None,
    ) -> None:
        self.encoding = encoding
        self.mask = mask or CausalMask(position_ids=encoding.position_ids, documents=documents)
        self.length = length or len(encoding.position_ids)
        self.starts = self.mask.starts  # first position of each token's document, or None
        self._dense: dict[tuple[HeadRange, torch.dtype, QueryBlock | None], Tensor] = {}
        self._narrower: dict[int, AttentionContext] = {}

    def for_window(self, window: int | None) -> "AttentionContext":
        """Return the context of the layers with this window; ``None`` means no window."""
        if window is None or (window >= self.length and self.encoding.local is None):
            return self
        if window not in self._narrower:
            narrower = AttentionContext(
                encoding=self.encoding.in_windows,
                documents=None,
                mask=self.mask.for_window(window) if window < self.length else self.mask,
                length=self.length,
            )
            narrower.starts = self.starts
            self._narrower[window] = narrower
        return self._narrower[window]

    @property
    def ages(self) -> Int[Tensor, "batch seq"] | None:
        """Number of earlier tokens in each token's document; None without documents."""
        return None if self.starts is None else self.encoding.position_ids - self.starts

    @property
    def is_plain_causal(self) -> bool:
        """Whether attention is only causal, which every kernel supports."""
        return self.encoding.slopes is None and self.mask.starts is None

    def apply_rope(self, heads: Tensor) -> Tensor:
        """Apply RoPE, if any, to queries or keys: (batch, seq, heads, head_dim)."""
        rotation = self.encoding.rotation
        return heads if rotation is None else rotation(heads)

    def build_dense_mask(
        self, heads: HeadRange, dtype: torch.dtype, block: QueryBlock | None = None
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        """Return the tensor that is added to the scores of these heads; -inf hides a key.

        Without a ``block``, queries and keys are the tokens of this rank.
        """
        key = heads, dtype, block
        if key in self._dense:
            return self._dense[key]
        position_ids = self.encoding.position_ids
        assert position_ids.device.type not in ACCELERATORS, "length times length numbers"
        query_block = block or QueryBlock(
            queries=range(len(position_ids)), keys=len(position_ids)
        )
        queries = slice(query_block.queries.start, query_block.queries.stop)
        change = torch.zeros((), device=position_ids.device)
        if self.encoding.slopes is not None:
            distance = position_ids[queries, None] - torch.arange(
                query_block.keys, device=position_ids.device
            )
            change = -self.encoding.slopes[slice(*heads), None, None] * distance
        hidden = ~self.mask.build_dense_mask(queries, query_block.keys)
        self._dense[key] = change.masked_fill(hidden, -math.inf).to(dtype)
        return self._dense[key]

    def score_change(self, heads: HeadRange) -> ScoreChange | None:
        """Return ALiBi's discount as a function of one score, for ``flex_attention``."""
        if self.encoding.slopes is None:
            return None
        slopes, position_ids = self.encoding.slopes[slice(*heads)], self.encoding.position_ids

        def add_slope(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
        ) -> Tensor:
            return score - slopes[head] * (position_ids[query] - key)

        return add_slope


class Attention(nn.Module):
    """Causal self-attention; several query heads share a key head and a value head.

    Grouping follows https://arxiv.org/abs/2305.13245, section 2.2: query head ``i`` reads group
    ``i // (num_heads / num_kv_heads)``. A rank may have some heads, from ``first_head`` on.
    ``qk_norm`` normalizes queries and keys before RoPE: over their whole projected width
    (OLMoE, https://arxiv.org/abs/2409.02060, section 4.2.5), or, with
    ``qk_norm_over: each_head``, within each head, with one set of weights (Qwen3,
    https://arxiv.org/abs/2505.09388, section 2).
    ``windows`` has all layers' (`components.attention_windows`), ``window`` this layer's.
    Scores are divided by the root of ``scale_dim``, by default ``head_dim``. ``layer_scaling``
    records that the published run divided scores by the layer's number and multiplied them back
    in the softmax (Megatron); with float32 scores, as here, both cancel. With an
    ``output_gate`` the sigmoid of a map of the input multiplies each channel of all heads'
    outputs (https://arxiv.org/abs/2505.06708, section 2.2; Qwen3-Next). ``sinks`` are trained
    logits, one per head, in the denominators of the softmax (gpt-oss).
    """

    first_head = 0
    starts: Mapping[str, float] = {"sinks": 0.0}  # read by the initialization
    uses_rope = True
    windows: tuple[Window, ...] = ("full",)
    window: int | None = None

    def __init__(self, spec: AttentionSpec, *, dim: int) -> None:
        super().__init__()
        head_dim, scale_dim, bias = spec.head_dim, spec.scale_dim, spec.bias
        query_dim, key_dim = spec.num_heads * head_dim, spec.num_kv_heads * head_dim
        self.num_heads = spec.num_heads
        self.head_dim = head_dim
        self.layer_scaling = spec.layer_scaling
        # Scale the queries, as Gemma does: kernels divide scores by the root of head_dim.
        self.query_scale = None if scale_dim is None else math.sqrt(head_dim / scale_dim)
        self.windows = spec.windows
        self.query = Linear(dim, query_dim, bias=bias)
        self.key = Linear(dim, key_dim, bias=bias)
        self.value = Linear(dim, key_dim, bias=bias)
        self.norms_heads = spec.norms_heads
        widths = (head_dim, head_dim) if self.norms_heads else (query_dim, key_dim)
        norms = [
            spec.qk_norm.build_part(dim=width) if spec.qk_norm else None for width in widths
        ]
        self.query_norm, self.key_norm = norms
        self.gate = Linear(dim, query_dim, bias=bias) if spec.output_gate else None
        self.sinks = nn.Parameter(torch.zeros(spec.num_heads)) if spec.sinks else None
        self.core = AttentionCore(
            dropout=spec.dropout, backends=spec.backends, has_sinks=spec.sinks
        )
        self.output = ResidualLinear(query_dim, dim, bias=bias)

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Tensor:
        query, key = self.query(hidden), self.key(hidden)
        gate = None if self.gate is None else self.gate(hidden)
        if not self.norms_heads:
            query, key = self._normalized(query, key)
        query, key = self._heads(query), self._heads(key)
        if self.norms_heads:
            query, key = self._normalized(query, key)
        if self.uses_rope:
            query, key = scope.apply_rope(query), scope.apply_rope(key)
        if self.query_scale is not None:
            query = query * self.query_scale
        mixed = self.core(
            query.transpose(1, 2),  # (batch, heads, seq, head_dim)
            key.transpose(1, 2),
            self._heads(self.value(hidden)).transpose(1, 2),
            scope,
            first_head=self.first_head,
            sinks=self.sinks,
        )
        mixed = mixed.transpose(1, 2).flatten(-2)
        return cast("Tensor", self.output(mixed if gate is None else mixed * gate.sigmoid()))

    @property
    def is_fullgraph(self) -> bool:
        """Whether torch's compiler traces the part without a graph break."""
        return self.core.is_fullgraph

    def prepare_masks(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> None:
        """Let the core build the block mask that all layers share."""
        self.core.prepare_masks(hidden, scope, head_dim=self.head_dim)

    def _normalized(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            return query, key
        return self.query_norm(query), self.key_norm(key)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim)


def device_kind(tensor: Tensor) -> str:
    """Return the device type that computes attention; a dry run replaces this function."""
    return tensor.device.type


class AttentionCore(nn.Module):
    """Attention core: softmax of scaled scores times values; no parameters, so replaceable.

    It calls the first of ``backends`` that supports the case (`components.attention_backends`).
    Raises RecipeError if their order is invalid, or, in a call, if none supports the mask.
    """

    ranks = 1  # number of ranks from which keys are gathered
    is_fullgraph = True  # whether torch's compiler traces the core without a graph break

    def __init__(
        self, *, dropout: BelowOne, backends: Sequence[Backend], has_sinks: bool = False
    ) -> None:
        super().__init__()
        check_order(backends)
        self.has_sinks = has_sinks
        self.dropout = dropout
        self.backends = tuple(backends)

    def prepare_masks(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext, *, head_dim: int
    ) -> None:
        """Build the shared block mask before the first layer, not in each layer's graph."""
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
        scope: AttentionContext,
        *,
        first_head: int,
        sinks: Float[Tensor, " heads"] | None = None,
    ) -> Float[Tensor, "batch heads seq value_dim"]:
        heads = (first_head, first_head + query.shape[1])
        kernels = self._kernels_for(query, key, scope)
        if kernels[:1] == ("flex",):
            return self._flex(query, key, value, scope, heads, sinks)
        is_plain = scope.is_plain_causal and sinks is None
        return attention_kernels.scaled_dot_product(
            query,
            key,
            value,
            kernels=kernels,
            mask=None if is_plain else scope.build_dense_mask(heads, query.dtype),
            dropout=self._dropped,
            sinks=sinks,
        )

    def _flex(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scope: AttentionContext,
        heads: HeadRange,
        sinks: Tensor | None,
    ) -> Tensor:
        return attention_kernels.attend_with_flex(
            query,
            key,
            value,
            change=scope.score_change(heads),
            blocks=self._blocks(scope),
            dropout=self._dropped,
            sinks=sinks,
        )

    @property
    def _dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def _blocks(self, scope: AttentionContext) -> BlockMask:
        return scope.mask.build_block_mask(len(scope.encoding.position_ids) * self.ranks)

    def _kernels_for(
        self, query: Tensor, key: Tensor, scope: AttentionContext
    ) -> tuple[Backend, ...]:
        grouped, width = query.shape[1] != key.shape[1], query.shape[-1]
        return self._kernels(device_kind(query), product_dtype(query), width, grouped, scope)

    def _kernels(
        self,
        kind: str,
        dtype: torch.dtype,
        head_dim: int,
        grouped: bool,
        scope: AttentionContext,
    ) -> tuple[Backend, ...]:
        mask: Literal["causal", "offset", "structured"] = "structured"
        if scope.is_plain_causal:
            mask = "causal" if self.ranks == 1 else "offset"
        case = AttentionCase(
            device=kind,
            dtype=str(dtype).removeprefix("torch."),
            head_dim=head_dim,
            grouped=grouped,
            dropout=self._dropped > 0,
            mask=mask,
            sinks=self.has_sinks,
        )
        lacking = attention_kernels.lacking(kind)
        return select_backends([name for name in self.backends if name not in lacking], case)
