"""MLP, the feed-forward part of a layer, plain or gated, and its activations."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from components.config.model_spec.feed_forward import FeedForwardSpec, MLPSpec
from components.model.linear import Linear, ResidualLinear, wanted_gradients

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # what Megatron's fused GELU computes
    "relu_squared": lambda x: F.relu(x).square(),  # https://arxiv.org/abs/2109.08668
}


class XIELU(nn.Module):
    """XIELU activation, https://arxiv.org/abs/2411.13010, with two trained scalars.

    With ``p = softplus(alpha_p)`` and ``n = BETA + softplus(alpha_n)`` it is ``p x^2 + BETA x``
    above 0 and ``n (expm1(min(x, EPS)) - x) + BETA x`` elsewhere; both p and n start at 0.8.
    Constants and form match swiss-ai's Megatron-LM and ``transformers``. It computes in float32
    or wider, and saves only its input for the backward pass.
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
        curved = torch.where(wide > 0, positive * wide.square(), negative * _below(wide))
        return (curved + XIELU.BETA * wide).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, positive, negative = ctx.saved_tensors
        wanted = wanted_gradients(ctx)
        wide, incoming = x.to(positive.dtype), upstream[0].to(positive.dtype)
        above = wide > 0
        x_gradient = positive_gradient = negative_gradient = None
        if wanted[0]:
            # The minimum is constant between EPS and 0.
            exp_slope = torch.where(wide < XIELU.EPS, wide.clamp(max=0.0).exp(), 0.0) - 1.0
            slope = torch.where(above, 2.0 * positive * wide, negative * exp_slope)
            x_gradient = (incoming * (slope + XIELU.BETA)).to(x.dtype)
        if wanted[1]:
            positive_gradient = torch.where(above, incoming * wide.square(), 0.0).sum()[None]
        if wanted[2]:
            negative_gradient = torch.where(above, 0.0, incoming * _below(wide)).sum()[None]
        return x_gradient, positive_gradient, negative_gradient


def _below(x: Tensor) -> Tensor:
    return x.clamp(max=XIELU.EPS).expm1() - x


class SwiGLU(NamedTuple):
    """Clamped SwiGLU: ``g sigmoid(alpha g) (u + offset)``; g is at most ``limit``, u within it.

    As in gpt-oss (github.com/openai/gpt-oss, gpt_oss/torch/model.py, ``swiglu``). It computes
    in float32 or wider, and saves only its inputs for the backward pass.
    """

    alpha: float
    limit: float
    offset: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        apply: Callable[..., Tensor] = _SwiGLU.apply
        return apply(gate, up, *self)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, *numbers: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.alpha, ctx.limit, ctx.offset = alpha, limit, offset = numbers
        wide = torch.promote_types(gate.dtype, torch.float32)
        limited = gate.to(wide).clamp(max=limit)
        linear = up.to(wide).clamp(-limit, limit) + offset
        return (limited * (alpha * limited).sigmoid() * linear).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        wide = torch.promote_types(gate.dtype, torch.float32)
        incoming, whole_gate, whole_up = (each.to(wide) for each in (upstream[0], gate, up))
        limited = whole_gate.clamp(max=ctx.limit)
        share = (ctx.alpha * limited).sigmoid()
        linear = whole_up.clamp(-ctx.limit, ctx.limit) + ctx.offset
        slope = share * (1 + ctx.alpha * limited * (1 - share))
        gate_gradient = (incoming * linear * slope).masked_fill(whole_gate > ctx.limit, 0.0)
        up_gradient = (incoming * limited * share).masked_fill(whole_up.abs() > ctx.limit, 0.0)
        return gate_gradient.to(gate.dtype), up_gradient.to(up.dtype), None, None, None


def make_swiglu(spec: FeedForwardSpec) -> SwiGLU | None:
    """Return the clamped SwiGLU of a part; None if its gate is ``activation(gate) * up``."""
    if not spec.is_clamped:
        return None
    limit = math.inf if spec.swiglu_limit is None else spec.swiglu_limit
    return SwiGLU(spec.swiglu_alpha, limit, spec.linear_offset)


class MLP(nn.Module):
    """MLP: ``down(activation(up(x)))``, gated ``down(activation(gate(x)) * up(x))``.

    Gates: https://arxiv.org/abs/2002.05202, equation 6. `SwiGLU` documents the clamped gate.
    """

    def __init__(self, spec: MLPSpec, *, dim: int) -> None:
        super().__init__()
        width, bias, name = spec.ffn_dim, spec.bias, spec.activation
        self.activation = XIELU() if name == "xielu" else ACTIVATIONS[name]
        self.gate = Linear(dim, width, bias=bias) if spec.gated else None
        self.up = Linear(dim, width, bias=bias)
        self.down = ResidualLinear(width, dim, bias=bias)
        self.swiglu = make_swiglu(spec)

    def forward(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        if self.gate is None:
            inner = self.activation(self.up(hidden))
        elif self.swiglu is not None:
            inner = self.swiglu(self.gate(hidden), self.up(hidden))
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        return cast("Tensor", self.down(inner))
