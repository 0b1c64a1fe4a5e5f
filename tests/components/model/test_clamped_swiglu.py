"""Clamped SwiGLU and biased experts against the classes of ``transformers`` and autograd."""

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

from components.config.model_spec.feed_forward import ExpertsSpec
from components.model.mlp import MLP, SwiGLU
from components.model.moe import Experts
from components.optim.muon import is_hidden_matrix
from tests.components.model.specs import experts_spec, mlp_spec

ALPHA, LIMIT, OFFSET = 1.702, 0.7, 1.0
DIM, WIDTH, NUM_EXPERTS, TOP_K = 8, 12, 5, 2
CLAMPED = {"swiglu_alpha": ALPHA, "swiglu_limit": LIMIT, "linear_offset": OFFSET}


def formula(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + OFFSET)


def test_values_and_gradients_are_those_of_autograd() -> None:
    gate, up, upstream = torch.randn(3, 40, 7, dtype=torch.float64)
    ours = [each.clone().requires_grad_() for each in (gate, up)]
    theirs = [each.clone().requires_grad_() for each in (gate, up)]
    result, expected = SwiGLU(ALPHA, LIMIT, OFFSET)(*ours), formula(*theirs)
    torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(result, ours, upstream)
    assert not gradients[0][gate > LIMIT].any()
    assert not gradients[1][up.abs() > LIMIT].any()
    expected_gradients = torch.autograd.grad(expected, theirs, upstream)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-12, atol=1e-13)


def test_the_inputs_alone_are_saved_and_bfloat16_is_computed_in_float32() -> None:
    gate, up = (torch.randn(16, 9).bfloat16().requires_grad_() for _ in range(2))
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = SwiGLU(ALPHA, LIMIT, OFFSET)(gate, up)
    assert [id(each) for each in saved] == [id(gate), id(up)]
    assert result.dtype == torch.bfloat16
    exact = formula(gate.float(), up.float()).bfloat16()
    torch.testing.assert_close(result, exact, rtol=0, atol=0)


def test_an_mlp_uses_it() -> None:
    spec = mlp_spec(WIDTH, bias=True, **CLAMPED)
    part, hidden = MLP(spec, dim=DIM), torch.randn(2, 3, DIM)
    assert part.gate is not None
    expected = part.down(formula(part.gate(hidden), part.up(hidden)))
    torch.testing.assert_close(part(hidden), expected)
    count = sum(parameter.numel() for parameter in part.parameters())
    assert count == spec.expert_parameters(DIM)


@pytest.mark.parametrize("shared", [None, 6])
def test_biases_of_experts_are_counted_vectors(shared: int | None) -> None:
    part, spec = experts(shared_ffn_dim=shared)
    count = spec.num_experts * spec.expert_parameters(DIM) + spec.shared_parameters(DIM)
    count += spec.router_parameters(DIM)
    assert sum(parameter.numel() for parameter in part.parameters()) == count
    biases = {name: each for name, each in part.named_parameters() if name.endswith("bias")}
    assert len(biases) == (7 if shared else 4)
    for name, bias in biases.items():
        assert bias.dim() == 1, name
        assert not is_hidden_matrix(f"layers.0.mlp.{name}", bias)


def test_experts_are_those_of_gpt_oss() -> None:
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


def experts(**changes: object) -> tuple[Experts, ExpertsSpec]:
    settings = {"num_experts": NUM_EXPERTS, "ffn_dim": WIDTH, "bias": True, "renormalize": True}
    spec = experts_spec(**settings | CLAMPED | changes)
    return Experts(spec, dim=DIM), spec
