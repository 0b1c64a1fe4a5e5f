"""Norms, positions, attention and MLP, each against a formula written out."""

import math
from collections.abc import Callable
from typing import Literal, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import SmolLM3Config

from components.config.model_spec.feed_forward import MLPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import InterleavedRotarySpec, OrderSpec, RotarySpec
from components.model.mlp import MLP, XIELU
from components.model.norms import Norm
from components.model.positions import (
    InterleavedRotary,
    PositionEncoding,
    Positions,
    Rotary,
    Rotation,
)

Part = TypeVar("Part")


def one(part: Part | None) -> Part:
    """Take for granted that an optional part is there."""
    assert part is not None
    return part


def rotation_of(length: int, *, head_dim: int, base: float) -> Rotation:
    rotary = Rotary(RotarySpec(base=base), dim=head_dim, num_heads=1, head_dim=head_dim)
    encoding: PositionEncoding = rotary(torch.arange(length))
    return one(encoding.rotation)


def test_rotary_turns_pairs_a_half_apart_by_position_times_frequency() -> None:
    heads = torch.randn(1, 9, 2, 6)
    turned = rotation_of(9, head_dim=6, base=100.0)(heads)
    for position in range(9):
        for pair in range(3):
            angle = position * 100.0 ** (-2 * pair / 6)
            for head in range(2):
                before = complex(*heads[0, position, head, [pair, pair + 3]].tolist())
                after = complex(*turned[0, position, head, [pair, pair + 3]].tolist())
                expected = before * complex(math.cos(angle), math.sin(angle))
                assert after == pytest.approx(expected, abs=1e-5)


def test_rotary_computes_in_float32_and_returns_what_came_in() -> None:
    heads = torch.randn(1, 600, 1, 8).bfloat16()
    rotation = rotation_of(600, head_dim=8, base=10_000.0)
    turned = rotation(heads)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotation(heads.float()).bfloat16())


def test_the_layers_without_positions_are_those_of_smollm3() -> None:
    published = SmolLM3Config(num_hidden_layers=9, no_rope_layer_interval=4)
    spec = InterleavedRotarySpec(base=10_000.0, skip_every=4)
    rotary = InterleavedRotary(spec, dim=8, num_heads=1, head_dim=8)
    assert [rotary.uses_rope(layer) for layer in range(9)] == published.no_rope_layers


def test_positions_of_no_kind_do_nothing_to_a_token() -> None:
    encoding = Positions(OrderSpec(), dim=12, num_heads=3, head_dim=4)(torch.arange(5))
    assert encoding.embedded is encoding.rotation is encoding.slopes is None


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _relu_squared(x: Tensor) -> Tensor:
    return torch.where(x > 0, x**2, 0.0)


def _xielu(x: Tensor, alpha: float | Tensor = 0.8, below: float | Tensor = 0.8) -> Tensor:
    eps = torch.tensor(-1e-6, dtype=x.dtype)
    return torch.where(
        x > 0, alpha * x**2 + 0.5 * x, below * (torch.expm1(torch.min(x, eps)) - x) + 0.5 * x
    )


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("silu", _silu),
        ("gelu", _gelu),
        ("gelu_tanh", _gelu_tanh),
        ("relu_squared", _relu_squared),
        ("xielu", _xielu),
    ],
)
def test_the_mlp_is_its_formula_plain_and_gated(
    activation: Literal["silu", "gelu", "gelu_tanh", "relu_squared", "xielu"],
    formula: Callable[[Tensor], Tensor],
) -> None:
    hidden = torch.randn(2, 3, 8)
    gated = MLP(MLPSpec(ffn_dim=11, activation=activation, gated=True, bias=False), dim=8)
    expected = (formula(hidden @ one(gated.gate).weight.T) * (hidden @ gated.up.weight.T)) @ (
        gated.down.weight.T
    )
    torch.testing.assert_close(gated(hidden), expected)
    plain = MLP(MLPSpec(ffn_dim=11, activation=activation, gated=False, bias=True), dim=8)
    inner = formula(hidden @ plain.up.weight.T + plain.up.bias)
    torch.testing.assert_close(plain(hidden), inner @ plain.down.weight.T + plain.down.bias)


def test_a_bare_norm_of_each_head_is_the_same_before_and_after_rotation() -> None:
    """So nanochat's, which comes after, needs no order of its own."""
    norm = Norm(NormSpec(eps=1e-6, center=False, weight=False, bias=False), dim=6)
    heads, turn = torch.randn(1, 9, 2, 6).double(), rotation_of(9, head_dim=6, base=100.0)
    torch.testing.assert_close(turn(norm(heads)), norm(turn(heads)), rtol=1e-6, atol=1e-6)


def test_xielu_starts_with_its_published_values() -> None:
    found = XIELU()(torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0]))
    torch.testing.assert_close(found, torch.tensor([0.139830, -0.205696, -8e-7, 1.3, 8.7]))


def test_gradients_of_xielu_and_of_its_scalars_are_autograds_of_the_formula() -> None:
    ours = XIELU().double()
    with torch.no_grad():
        ours.alpha_p.fill_(0.3)
        ours.alpha_n.fill_(-1.1)
    scalars = [one.detach().clone().requires_grad_() for one in (ours.alpha_p, ours.alpha_n)]
    x = torch.cat([torch.randn(4, 50).double().flatten(), torch.tensor([-5e-7, -2e-6, -800.0])])
    given, upstream = (x.clone().requires_grad_() for _ in range(2)), torch.randn(203).double()
    one, other = given
    formula = _xielu(
        other, *(F.softplus(a) + b for a, b in zip(scalars, (0.0, 0.5), strict=True))
    )
    result = ours(one)
    torch.testing.assert_close(result, formula, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(result, (one, ours.alpha_p, ours.alpha_n), upstream)
    expected = torch.autograd.grad(formula, (other, *scalars), upstream)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_xielu_keeps_its_input_alone_and_computes_bfloat16_in_float32() -> None:
    part, x = XIELU().bfloat16(), torch.randn(64, 32).bfloat16().requires_grad_()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = part(x)
    assert sum(one.nbytes for one in kept if one.numel() > 1) == x.nbytes
    assert result.dtype == torch.bfloat16
    alphas = (F.softplus(a.float()) for a in (part.alpha_p, part.alpha_n))
    exact = _xielu(x.float(), next(alphas), 0.5 + next(alphas))
    torch.testing.assert_close(result, exact.bfloat16(), rtol=0, atol=0)
