"""Multi-head latent attention (MLA): queries, keys and values from low-rank vectors.

https://arxiv.org/abs/2405.04434, section 2.1, and https://arxiv.org/abs/2412.19437, section
2.1.1. The channels of a head are first those without RoPE, then those with RoPE.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.attention import LatentAttentionSpec
from components.model.attention import Attention, AttentionContext, AttentionCore
from components.model.linear import Linear, ResidualLinear


class LatentAttention(Attention):
    """Latent attention: heads are projected from two low-rank vectors per token.

    Queries and keys have ``head_dim`` channels. The last ``rotary_dim`` have RoPE, unless the
    model has no positions; for keys, these are the same in all heads and have no norm. Values
    have ``value_dim`` channels.
    Without a ``query_rank``, queries are projected from the hidden states. The squared
    magnitude of a rotation's scaling multiplies the scores of all channels, as DeepSeek's
    ``mscale_all_dim: 1`` does. There are no biases, grouped heads or other options of
    `Attention`.
    """

    def __init__(self, spec: LatentAttentionSpec, *, dim: int) -> None:
        nn.Module.__init__(self)
        rank = spec.key_value_rank
        self.num_heads = spec.num_heads
        self.head_dim = spec.head_dim
        self.rotary_dim = spec.rotary_dim
        self.value_dim = spec.value_dim
        self.query_down = self.query_norm = None
        if spec.query_rank is not None:
            self.query_down = Linear(dim, spec.query_rank, bias=False)
            self.query_norm = spec.latent_norm.build_part(dim=spec.query_rank)
        self.query = Linear(spec.query_rank or dim, self.num_heads * self.head_dim, bias=False)
        self.key_value_down = Linear(dim, rank + self.rotary_dim, bias=False)
        self.key_value_norm = spec.latent_norm.build_part(dim=rank)
        self.key_value = Linear(rank, spec.inner_width, bias=False)
        self.core = AttentionCore(dropout=spec.dropout, backends=spec.backends)
        self.output = ResidualLinear(self.num_heads * self.value_dim, dim, bias=False)

    @override
    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Tensor:
        static_dim = self.head_dim - self.rotary_dim
        query = self._apart(self._queries(hidden), self.head_dim)
        static_query, rotary_query = query.split([static_dim, self.rotary_dim], dim=-1)
        widths = [self.key_value.in_features, self.rotary_dim]
        latent, rotary_key = self.key_value_down(hidden).split(widths, dim=-1)
        inner = self.key_value(self.key_value_norm(latent))
        widths = [static_dim, self.value_dim]
        static_key, value = self._apart(inner, sum(widths)).split(widths, dim=-1)
        rotary_key = rotary_key[:, :, None]  # (batch, seq, 1, rotary_dim)
        rotation = scope.encoding.rotation
        if self.uses_rope and rotation is not None:
            rotary_query, rotary_key = rotation(rotary_query), rotation(rotary_key)
            if rotation.magnitude != 1:
                static_query = static_query * rotation.magnitude**2
        rotary_key = rotary_key.expand(-1, -1, static_key.shape[2], -1)
        mixed = self.core(
            # Heads before positions: (batch, heads, seq, head_dim).
            torch.cat((static_query, rotary_query), -1).transpose(1, 2),
            torch.cat((static_key, rotary_key), -1).transpose(1, 2),
            value.transpose(1, 2),
            scope,
            first_head=self.first_head,
        )
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(-2)))

    @staticmethod
    def _apart(projected: Tensor, width: int) -> Any:
        """Split into this rank's heads: (batch, seq, heads, width)."""
        return projected.view(*projected.shape[:2], -1, width)

    def _queries(self, hidden: Tensor) -> Tensor:
        if self.query_down is None or self.query_norm is None:
            return cast("Tensor", self.query(hidden))
        return cast("Tensor", self.query(self.query_norm(self.query_down(hidden))))
