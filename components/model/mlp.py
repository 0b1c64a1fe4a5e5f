"""The feed-forward part of a layer (MLP), plain or gated, and its activations."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, cast

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from components.model.products import Linear, ResidualLinear

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # what Megatron's fused GELU computes
}


class MLP(nn.Module):
    """Widen to ``ffn_dim``, apply the activation, come back.

    Gated it is ``down(activation(gate(x)) * up(x))``, https://arxiv.org/abs/2002.05202,
    equation 6; plain it is ``down(activation(up(x)))``.
    """

    def __init__(
        self,
        *,
        dim: int,
        ffn_dim: int,
        activation: Literal["silu", "gelu", "gelu_tanh"],
        gated: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate = Linear(dim, ffn_dim, bias=bias) if gated else None
        self.up = Linear(dim, ffn_dim, bias=bias)
        self.down = ResidualLinear(ffn_dim, dim, bias=bias)

    def forward(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if self.gate is None:
            inner = self.activation(self.up(hidden))
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        return cast("Tensor", self.down(inner))
