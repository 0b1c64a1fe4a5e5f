"""Norms, positions, MLPs and clamped gates against formulas and published classes."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GptOssConfig, SmolLM3Config
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

from components.config.model_spec.feed_forward import ExpertsSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import InterleavedRotarySpec, OrderSpec, RotarySpec
from components.model.mlp import MLP, XIELU, SwiGLU
from components.model.moe import Experts
from components.model.norms import Norm
from components.model.positions import (
    InterleavedRotary,
    PositionEncoding,
    Positions,
    Rotary,
    Rotation,
)
from components.optim.muon import is_hidden_matrix
from tests.components.model.specs import RMS_NORM, experts_spec, mlp_spec

Part = TypeVar("Part")


def one(part: Part | None) -> Part:
    """Return an optional part that must exist."""
    assert part is not None
    return part


def rotation_of(length: int, *, head_dim: int, base: float) -> Rotation:
    rotary = Rotary(RotarySpec(base=base), dim=head_dim, num_heads=1, head_dim=head_dim)
    encoding: PositionEncoding = rotary(torch.arange(length))
    return one(encoding.rotation)


@pytest.mark.parametrize("center", [False, True], ids=["RMSNorm", "LayerNorm"])
def test_a_norm_equals_its_formula(center: bool) -> None:
    norm = Norm(NormSpec(eps=0.1, center=center, weight=True, bias=center), dim=5)
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter)
    hidden = torch.randn(2, 3, 5, dtype=torch.float64)
    centered = hidden - hidden.mean(-1, keepdim=True) if center else hidden
    scaled = centered / (centered.square().mean(-1, keepdim=True) + 0.1).sqrt()
    expected = scaled * one(norm.weight) + (one(norm.bias) if center else 0)
    torch.testing.assert_close(norm(hidden.float()), expected.float())


def test_rotary_rotates_channel_pairs_by_position_times_frequency() -> None:
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


def test_rotary_computes_in_float32_and_returns_the_dtype_of_its_input() -> None:
    heads = torch.randn(1, 600, 1, 8).bfloat16()
    rotation = rotation_of(600, head_dim=8, base=10_000.0)
    turned = rotation(heads)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotation(heads.float()).bfloat16())


def test_layers_without_rotation_equal_smollm3s() -> None:
    published = SmolLM3Config(num_hidden_layers=9, no_rope_layer_interval=4)
    spec = InterleavedRotarySpec(base=10_000.0, skip_every=4)
    rotary = InterleavedRotary(spec, dim=8, num_heads=1, head_dim=8)
    assert [rotary.uses_rope(layer) for layer in range(9)] == published.no_rope_layers


def test_a_model_without_positions_has_an_empty_encoding() -> None:
    encoding = Positions(OrderSpec(), dim=12, num_heads=3, head_dim=4)(torch.arange(5))
    assert encoding.embedded is encoding.rotation is encoding.slopes is None


def tensors_saved(forward: Callable[[], Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return the saved tensors of a forward pass and its result."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return saved, forward()


def _xielu(x: Tensor, alpha: float | Tensor = 0.8, below: float | Tensor = 0.8) -> Tensor:
    eps = torch.tensor(-1e-6, dtype=x.dtype)
    return torch.where(
        x > 0, alpha * x**2 + 0.5 * x, below * (torch.expm1(torch.min(x, eps)) - x) + 0.5 * x
    )


FORMULAS: dict[Any, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu_squared": lambda x: torch.where(x > 0, x**2, 0.0),
    "xielu": _xielu,
}


@pytest.mark.parametrize("activation", FORMULAS)
def test_an_mlp_equals_its_formula_plain_and_gated(activation: str) -> None:
    hidden, formula = torch.randn(2, 3, 8), FORMULAS[activation]
    gated = MLP(mlp_spec(11, activation, gated=True), dim=8)
    inner = formula(hidden @ one(gated.gate).weight.T) * (hidden @ gated.up.weight.T)
    torch.testing.assert_close(gated(hidden), inner @ gated.down.weight.T)
    plain = MLP(mlp_spec(11, activation, gated=False, bias=True), dim=8)
    inner = formula(hidden @ plain.up.weight.T + plain.up.bias)
    torch.testing.assert_close(plain(hidden), inner @ plain.down.weight.T + plain.down.bias)


def test_a_bare_norm_of_each_head_is_the_same_before_and_after_rotation() -> None:
    """Nanochat normalizes after rotation, which is therefore equal."""
    norm = Norm(RMS_NORM.model_copy(update={"weight": False}), dim=6)
    heads, turn = torch.randn(1, 9, 2, 6).double(), rotation_of(9, head_dim=6, base=100.0)
    torch.testing.assert_close(turn(norm(heads)), norm(turn(heads)), rtol=1e-6, atol=1e-6)


def test_xielu_starts_with_its_published_values() -> None:
    found = XIELU()(torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0]))
    torch.testing.assert_close(found, torch.tensor([0.139830, -0.205696, -8e-7, 1.3, 8.7]))


def test_gradients_of_xielu_equal_autograds() -> None:
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


def test_xielu_saves_only_its_input_and_computes_bfloat16_in_float32() -> None:
    part, x = XIELU().bfloat16(), torch.randn(64, 32).bfloat16().requires_grad_()
    kept, result = tensors_saved(lambda: part(x))
    assert sum(one.nbytes for one in kept if one.numel() > 1) == x.nbytes
    assert result.dtype == torch.bfloat16
    alphas = (F.softplus(a.float()) for a in (part.alpha_p, part.alpha_n))
    exact = _xielu(x.float(), next(alphas), 0.5 + next(alphas))
    torch.testing.assert_close(result, exact.bfloat16(), rtol=0, atol=0)


ALPHA, LIMIT, OFFSET = 1.702, 0.7, 1.0
DIM, WIDTH, NUM_EXPERTS, TOP_K = 8, 12, 5, 2
CLAMPED = {"swiglu_alpha": ALPHA, "swiglu_limit": LIMIT, "linear_offset": OFFSET}


def experts(**changes: object) -> tuple[Experts, ExpertsSpec]:
    settings = {"num_experts": NUM_EXPERTS, "ffn_dim": WIDTH, "bias": True, "renormalize": True}
    spec = experts_spec(**settings | CLAMPED | changes)
    return Experts(spec, dim=DIM), spec


def clamped(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + OFFSET)


def test_clamped_swiglu_equals_its_formula_under_autograd() -> None:
    gate, up, upstream = torch.randn(3, 40, 7, dtype=torch.float64)
    ours = [each.clone().requires_grad_() for each in (gate, up)]
    theirs = [each.clone().requires_grad_() for each in (gate, up)]
    result, expected = SwiGLU(ALPHA, LIMIT, OFFSET)(*ours), clamped(*theirs)
    torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(result, ours, upstream)
    expected_gradients = torch.autograd.grad(expected, theirs, upstream)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-12, atol=1e-13)


def test_clamped_swiglu_saves_only_its_inputs_and_computes_in_float32() -> None:
    gate, up = (torch.randn(16, 9).bfloat16().requires_grad_() for _ in range(2))
    saved, result = tensors_saved(lambda: SwiGLU(ALPHA, LIMIT, OFFSET)(gate, up))
    assert [id(each) for each in saved] == [id(gate), id(up)]
    assert result.dtype == torch.bfloat16
    exact = clamped(gate.float(), up.float()).bfloat16()
    torch.testing.assert_close(result, exact, rtol=0, atol=0)


def test_an_mlp_uses_clamped_swiglu() -> None:
    spec = mlp_spec(WIDTH, bias=True, **CLAMPED)
    part, hidden = MLP(spec, dim=DIM), torch.randn(2, 3, DIM)
    assert part.gate is not None
    expected = part.down(clamped(part.gate(hidden), part.up(hidden)))
    torch.testing.assert_close(part(hidden), expected)
    count = sum(parameter.numel() for parameter in part.parameters())
    assert count == spec.expert_parameters(DIM)


@pytest.mark.parametrize("shared", [None, 6])
def test_biases_of_experts_are_counted_and_are_vectors(shared: int | None) -> None:
    part, spec = experts(shared_ffn_dim=shared)
    count = spec.num_experts * spec.expert_parameters(DIM) + spec.shared_parameters(DIM)
    count += spec.router_parameters(DIM)
    assert sum(parameter.numel() for parameter in part.parameters()) == count
    biases = {name: each for name, each in part.named_parameters() if name.endswith("bias")}
    assert len(biases) == (7 if shared else 4)
    for name, bias in biases.items():
        assert bias.dim() == 1, name
        assert not is_hidden_matrix(f"layers.0.mlp.{name}", bias)


def test_experts_equal_gpt_oss() -> None:
    part, _ = experts()
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_(std=0.5)
    config = GptOssConfig(
        hidden_size=DIM,
        intermediate_size=WIDTH,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        swiglu_limit=LIMIT,
    )
    theirs = gpt_oss.GptOssMLP(config)
    rows = {
        name: each.view(NUM_EXPERTS, -1)
        for name, each in part.named_parameters()
        if name.endswith("bias")
    }
    gate, up, down = (part.get_parameter(f"{name}.weight") for name in ("gate", "up", "down"))
    theirs.load_state_dict({
        "router.weight": part.router.weight,
        "router.bias": part.router.bias,
        "experts.gate_up_proj": torch.stack([gate, up], 2).flatten(1, 2).mT,
        "experts.gate_up_proj_bias": torch.stack(
            [rows["gate.bias"], rows["up.bias"]], 2
        ).flatten(1),
        "experts.down_proj": down.mT,
        "experts.down_proj_bias": rows["down.bias"],
    })
    hidden = torch.randn(2, 9, DIM)
    ours, given = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected = theirs(given)[0]
    result = part(ours)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(result)
    gradients = [
        torch.autograd.grad(*each, upstream)[0] for each in ((result, ours), (expected, given))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
