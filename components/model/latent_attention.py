"""Multi-head latent attention: queries, keys and values from vectors of low rank.

https://arxiv.org/abs/2405.04434, section 2.1, and https://arxiv.org/abs/2412.19437, section
2.1.1. Channels of a head are those that do not rotate, then those that do.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.attention import LatentAttentionSpec
from components.model.attention import Attention, AttentionCore, ForwardScope
from components.model.products import Linear, ResidualLinear


class LatentAttention(Attention):
    """Attend with heads that are made of two narrow vectors a token.

    ``head_dim`` channels of queries and keys, of which the last ``rotary_dim`` rotate; those of
    keys are the same in all heads, and come without a norm. Values have ``value_dim``. Without
    a ``query_rank`` queries come from the hidden states. The squared magnitude of a rotation's
    scaling multiplies the scores of all channels, as DeepSeek's ``mscale_all_dim: 1`` does.
    There is no bias, and no head shares the keys of another. The other settings of an attention
    block have the value that switches them off.
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
            self.query_norm = spec.latent_norm.build(dim=spec.query_rank)
        self.query = Linear(spec.query_rank or dim, self.num_heads * self.head_dim, bias=False)
        self.key_value_down = Linear(dim, rank + self.rotary_dim, bias=False)
        self.key_value_norm = spec.latent_norm.build(dim=rank)
        self.key_value = Linear(rank, spec.inner_width, bias=False)
        self.core = AttentionCore(dropout=spec.dropout, backends=spec.backends)
        self.output = ResidualLinear(self.num_heads * self.value_dim, dim, bias=False)

    @property
    @override
    def turned_dim(self) -> int:
        return self.rotary_dim

    @override
    def forward(self, hidden: Float[Tensor, "batch seq dim"], scope: ForwardScope) -> Tensor:
        still = self.head_dim - self.rotary_dim
        query = self._apart(self._queries(hidden), self.head_dim)
        unturned, turned = query.split([still, self.rotary_dim], dim=-1)
        widths = [self.key_value.in_features, self.rotary_dim]
        latent, shared = self.key_value_down(hidden).split(widths, dim=-1)
        inner = self.key_value(self.key_value_norm(latent))
        widths = [still, self.value_dim]
        key, value = self._apart(inner, sum(widths)).split(widths, dim=-1)
        shared = shared[:, :, None]  # (batch, seq, 1, rotary_dim)
        rotation = scope.placement.rotation
        if self.turns and rotation is not None:
            turned, shared = rotation(turned), rotation(shared)
            if rotation.magnitude != 1:
                unturned = unturned * rotation.magnitude**2
        shared = shared.expand(-1, -1, key.shape[2], -1)
        mixed = self.core(
            torch.cat((unturned, turned), -1).transpose(1, 2),  # (batch, heads, seq, head_dim)
            torch.cat((key, shared), -1).transpose(1, 2),
            value.transpose(1, 2),
            scope,
            first_head=self.first_head,
        )
        return cast("Tensor", self.output(mixed.transpose(1, 2).flatten(-2)))

    @staticmethod
    def _apart(projected: Tensor, width: int) -> Any:
        """Part the heads, of which a rank may have some: (batch, seq, heads, width)."""
        return projected.view(*projected.shape[:2], -1, width)

    def _queries(self, hidden: Tensor) -> Tensor:
        if self.query_down is None or self.query_norm is None:
            return cast("Tensor", self.query(hidden))
        return cast("Tensor", self.query(self.query_norm(self.query_down(hidden))))
