"""Causal self-attention with grouped key-value heads, and what each token may attend to.

Documents, where they are given, part a packed sequence, and the slopes of the positions lower
the scores of distant keys. Two forms say the same: a dense tensor that is added to the scores,
and the functions and block mask that ``flex_attention`` takes.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from components.errors import RecipeError
from components.model.compiling import compile_for
from components.model.positions import Placement
from components.model.products import Linear, ResidualLinear
from components.ranges import BelowOne

Heads = tuple[int, int]  # first, and one after the last
ScoreChange = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class QueryBlock(NamedTuple):
    """Some of the ``queries`` at hand, against the first ``keys`` places of the sequence."""

    queries: range
    keys: int


class ForwardScope:
    """What the layers of one forward pass share, computed once; plain, like ``Placement``.

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
            return score - slopes[head] * (places[query] - places[key])

        return discounted

    def blocks(self) -> BlockMask:
        """Return the blocks with a visible pair; the tokens at hand must be all there are."""
        if self._blocks is None:
            places, documents = self.placement.places, self.documents

            def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                causal = places[query] >= places[key]
                if documents is None:
                    return causal
                return causal & (documents[batch, query] == documents[batch, key])

            batch, length = None if documents is None else len(documents), len(places)
            self._blocks = create_block_mask(
                visible, batch, None, length, length, str(places.device)
            )
        return self._blocks


class Attention(nn.Module):
    """Attend to all earlier tokens; several query heads share a key and a value head.

    Grouping is https://arxiv.org/abs/2305.13245, section 2.2: query head ``i`` reads group
    ``i // (num_heads / num_kv_heads)``. A rank may hold some heads, from ``first_head`` on.
    ``qk_norm`` normalizes queries and keys over their whole projected width, before they are
    turned (OLMoE, https://arxiv.org/abs/2409.02060, section 4.2.5).

    ``layer_scaling`` records that the published run divided scores by the layer's number and
    multiplied them back in the softmax (Megatron): in float32 scores, as here, that cancels.

    Raises:
        RecipeError: the groups do not divide the heads.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        qk_norm: Callable[..., nn.Module] | None,
        layer_scaling: bool,
        dropout: BelowOne,
        backend: Literal["auto", "sdpa", "flex"],
    ) -> None:
        super().__init__()
        if num_heads % num_kv_heads:
            divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
            problem = f"{num_kv_heads} does not divide num_heads = {num_heads}"
            remedy = f"choose one of {', '.join(map(str, divisors))}"
            raise RecipeError("model.attention.num_kv_heads", problem, remedy)
        query_dim, key_dim = num_heads * head_dim, num_kv_heads * head_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.first_head = 0
        self.layer_scaling = layer_scaling
        self.query = Linear(dim, query_dim, bias=bias)
        self.key = Linear(dim, key_dim, bias=bias)
        self.value = Linear(dim, key_dim, bias=bias)
        self.query_norm = None if qk_norm is None else qk_norm(dim=query_dim)
        self.key_norm = None if qk_norm is None else qk_norm(dim=key_dim)
        self.core = AttentionCore(dropout=dropout, backend=backend)
        self.output = ResidualLinear(query_dim, dim, bias=bias)

    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        query, key = self.query(hidden), self.key(hidden)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        mixed = self.core(
            scope.turn(self._heads(query)).transpose(1, 2),  # (batch, heads, seq, head_dim)
            scope.turn(self._heads(key)).transpose(1, 2),
            self._heads(self.value(hidden)).transpose(1, 2),
            scope,
            first_head=self.first_head,
        )
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(-2)))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim)


class AttentionCore(nn.Module):
    """Mix values by the softmax of scaled scores; no parameters, so it is easily replaced.

    ``auto`` is torch's scaled dot product, except on CUDA where positions or documents shape
    the scores and nothing is dropped: there ``flex_attention`` spares the dense mask.

    Raises:
        RecipeError: ``flex`` with dropout, or in training on a CPU.
    """

    in_one_graph = True  # whether torch's compiler takes it in one piece

    def __init__(self, *, dropout: BelowOne, backend: Literal["auto", "sdpa", "flex"]) -> None:
        super().__init__()
        if backend == "flex" and dropout > 0:
            raise RecipeError(
                "model.attention.backend",
                f"flex cannot drop attention weights, but model.attention.dropout = {dropout}",
                "use auto or sdpa, or model.attention.dropout=0.0",
            )
        self.dropout = dropout
        self.backend = backend

    def forward(
        self,
        query: Float[Tensor, "batch heads seq head_dim"],
        key: Float[Tensor, "batch kv_heads seq head_dim"],
        value: Float[Tensor, "batch kv_heads seq head_dim"],
        scope: ForwardScope,
        *,
        first_head: int,
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        heads = (first_head, first_head + query.shape[1])
        if self._uses_flex(query, scope):
            attend = _attend
            if query.device.type in {"cuda", "xpu"} and not torch.compiler.is_compiling():
                attend = compiled_flex(trains=torch.is_grad_enabled())
            return attend(query, key, value, scope.score_change(heads), scope.blocks())
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if scope.is_plain else scope.dense(heads, query.dtype),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=scope.is_plain,
            enable_gqa=True,
        )

    def _uses_flex(self, query: Tensor, scope: ForwardScope) -> bool:
        if self.backend == "flex" and query.device.type == "cpu" and query.requires_grad:
            problem = "flex has no backward pass on a CPU"
            raise RecipeError("model.attention.backend", problem, "use auto or sdpa")
        if self.backend != "auto":
            return self.backend == "flex"
        # A fake CUDA tensor may live on a machine without CUDA, where nothing compiles.
        on_cuda = query.is_cuda and torch.cuda.is_available()
        return on_cuda and not scope.is_plain and self.dropout == 0


def _attend(query: Tensor, key: Tensor, value: Tensor, change: Any, blocks: Any) -> Tensor:
    attend = cast("Callable[..., Tensor]", flex_attention)
    return attend(query, key, value, score_mod=change, block_mask=blocks, enable_gqa=True)


def _attend_to_any(*given: Any) -> Tensor:  # torch counts the graphs of a function by its code
    return _attend(*given)


@cache
def compiled_flex(*, trains: bool) -> Callable[..., Tensor]:
    """Compile `flex_attention`; uncompiled it makes the whole matrix of scores.

    Training has batches of one shape, and one graph. Held-out windows are of any length: at
    most four graphs serve all of them (one row or more, one block of the mask or more), and
    none is training's.
    """
    return compile_for(
        "model.attention.backend",
        _attend if trains else _attend_to_any,
        dynamic=not trains,
        remedy="use sdpa, and tell us the recipe",
    )
