"""Causal self-attention with grouped key-value heads."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from components.errors import RecipeError
from components.model.linear import ResidualLinear
from components.model.positions import Rotation


class Attention(nn.Module):
    """Attend to all earlier tokens; several query heads share a key and a value head.

    Grouping is https://arxiv.org/abs/2305.13245, section 2.2: query head ``i`` reads group
    ``i // (num_heads / num_kv_heads)``. The number of heads at hand is read off the
    projections' outputs, so that a rank may hold some of the heads.

    Raises:
        RecipeError: the groups do not divide the heads.
    """

    def __init__(
        self, *, dim: int, num_heads: int, num_kv_heads: int, head_dim: int, bias: bool
    ) -> None:
        super().__init__()
        if num_heads % num_kv_heads:
            divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
            raise RecipeError(
                "model.attention.num_kv_heads",
                f"{num_kv_heads} does not divide num_heads = {num_heads}",
                f"choose one of {', '.join(map(str, divisors))}",
            )
        self.head_dim = head_dim
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.output = ResidualLinear(num_heads * head_dim, dim, bias=bias)

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], rotation: Rotation
    ) -> Float[Tensor, "batch seq dim"]:
        query = rotation(self._heads(self.query(hidden)))
        key = rotation(self._heads(self.key(hidden)))
        value = self._heads(self.value(hidden))
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),  # (batch, heads, seq, head_dim)
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        branch: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return branch

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim)
