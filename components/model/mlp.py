"""The feed-forward part of a layer (MLP), plain or gated, and its activations."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from components.config.model_spec.feed_forward import MLPSpec
from components.model.products import Linear, ResidualLinear, wanted_gradients

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # what Megatron's fused GELU computes
    "relu_squared": lambda x: F.relu(x).square(),  # https://arxiv.org/abs/2109.08668
}


class XIELU(nn.Module):
    """Compute xIELU, https://arxiv.org/abs/2411.13010, with two trained scalars.

    With ``p = softplus(alpha_p)`` and ``n = BETA + softplus(alpha_n)`` it is ``p x^2 + BETA x``
    above 0 and ``n (expm1(min(x, EPS)) - x) + BETA x`` elsewhere; both p and n start at 0.8.
    Constants and form are those of swiss-ai's Megatron-LM and of ``transformers``; computed in
    float32 or finer, it keeps its input alone.
    """

    BETA, EPS, START = 0.5, -1e-6, 0.8
    starts: ClassVar[Mapping[str, float]] = {
        "alpha_p": math.log(math.expm1(START)),
        "alpha_n": math.log(math.expm1(START - BETA)),
    }

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.full((1,), self.starts["alpha_p"]))
        self.alpha_n = nn.Parameter(torch.full((1,), self.starts["alpha_n"]))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        wide = torch.promote_types(x.dtype, torch.float32)
        apply: Callable[..., Tensor] = _XIELU.apply
        positive = F.softplus(self.alpha_p.to(wide))
        return apply(x, positive, self.BETA + F.softplus(self.alpha_n.to(wide)))


class _XIELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        ctx.save_for_backward(x, positive, negative)
        wide = x.to(positive.dtype)
        bent = torch.where(wide > 0, positive * wide.square(), negative * _below(wide))
        return (bent + XIELU.BETA * wide).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, positive, negative = ctx.saved_tensors
        wanted = wanted_gradients(ctx)
        wide, given = x.to(positive.dtype), upstream[0].to(positive.dtype)
        above = wide > 0
        of_x = of_positive = of_negative = None
        if wanted[0]:
            # The minimum is constant between EPS and 0.
            falling = torch.where(wide < XIELU.EPS, wide.clamp(max=0.0).exp(), 0.0) - 1.0
            slope = torch.where(above, 2.0 * positive * wide, negative * falling)
            of_x = (given * (slope + XIELU.BETA)).to(x.dtype)
        if wanted[1]:
            of_positive = torch.where(above, given * wide.square(), 0.0).sum()[None]
        if wanted[2]:
            of_negative = torch.where(above, 0.0, given * _below(wide)).sum()[None]
        return of_x, of_positive, of_negative


def _below(x: Tensor) -> Tensor:
    return x.clamp(max=XIELU.EPS).expm1() - x


class MLP(nn.Module):
    """Widen to ``ffn_dim``, apply the activation, come back.

    Gated it is ``down(activation(gate(x)) * up(x))``, https://arxiv.org/abs/2002.05202,
    equation 6; plain it is ``down(activation(up(x)))``.
    """

    def __init__(self, spec: MLPSpec, *, dim: int) -> None:
        super().__init__()
        width, bias, name = spec.ffn_dim, spec.bias, spec.activation
        self.activation = XIELU() if name == "xielu" else ACTIVATIONS[name]
        self.gate = Linear(dim, width, bias=bias) if spec.gated else None
        self.up = Linear(dim, width, bias=bias)
        self.down = ResidualLinear(width, dim, bias=bias)

    def forward(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if self.gate is None:
            inner = self.activation(self.up(hidden))
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        return cast("Tensor", self.down(inner))
