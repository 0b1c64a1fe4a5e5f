"""Sigmoid scores, groups, biases and a shared expert against DeepSeek-V3 of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config, Qwen3NextConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

from components.model.moe import Experts
from components.model.parametrization import weight_kind
from components.optim.muon import is_hidden_matrix
from tests.components.model.test_moe import DIM, FFN_DIM, experts, one

NUM_EXPERTS = 12
DEEPSEEK: dict[str, Any] = {"num_experts": NUM_EXPERTS, "top_k": 3, "renormalize": True}
DEEPSEEK |= {"scores": "sigmoid", "weight_scale": 2.5, "num_groups": 4, "top_groups": 2}
DEEPSEEK |= {"shared_ffn_dim": 2 * FFN_DIM, "balance_rate": 0.125, "auxiliary_loss": 0.0}


def deepseek(**changes: Any) -> Experts:
    """Make experts with biases as large as the scores, so that they matter."""
    part = experts(**DEEPSEEK | changes)
    bias_of(part).copy_(torch.randn(NUM_EXPERTS))
    return part


def bias_of(part: Experts) -> Tensor:
    return one(part.choice_bias)


def reference(ours: Experts) -> DeepseekV3MoE:
    config = DeepseekV3Config(
        hidden_size=DIM,
        moe_intermediate_size=FFN_DIM,
        n_routed_experts=NUM_EXPERTS,
        n_shared_experts=2,
        num_experts_per_tok=ours.rule.top_k,
        n_group=ours.rule.num_groups,
        topk_group=ours.rule.top_groups,
        norm_topk_prob=ours.rule.renormalize,
        routed_scaling_factor=ours.rule.weight_scale,
    )
    config._experts_implementation = "eager"
    theirs = DeepseekV3MoE(config)
    assert ours.gate is not None
    assert ours.shared is not None
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.gate.e_score_correction_bias.copy_(bias_of(ours))
        theirs.experts.gate_up_proj.copy_(torch.cat([ours.gate.weight, ours.up.weight], 1))
        theirs.experts.down_proj.copy_(ours.down.weight)
    for name in ("gate", "up", "down"):
        weight = ours.shared.get_parameter(f"{name}.weight").detach()
        theirs.shared_experts.load_state_dict({f"{name}_proj.weight": weight}, strict=False)
    return theirs


@pytest.mark.parametrize(
    "changes", [{}, {"renormalize": False}, {"num_groups": 1, "top_groups": 1}]
)
def test_experts_and_their_gradients_equal_deepseek(changes):
    ours = deepseek(**changes)
    theirs, hidden = reference(ours), torch.randn(2, 17, DIM)
    mine, other = ours(hidden), theirs(hidden)
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(mine)
    mine.backward(upstream)
    other.backward(upstream)
    assert ours.shared is not None
    found = [one(part.weight.grad) for part in (ours.router, ours.down, ours.shared.up)]
    shared = theirs.shared_experts.up_proj.weight.grad
    expected = [theirs.gate.weight.grad, theirs.experts.down_proj.grad, shared]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_bias_falls_if_its_expert_had_more_than_the_mean_load() -> None:
    part = experts(**DEEPSEEK)
    load = torch.full((NUM_EXPERTS,), 5)
    load[0], load[1] = 7, 3  # the mean is still 5
    part.update_bias(load)
    assert bias_of(part).tolist() == [-0.125, 0.125, *[0.0] * (NUM_EXPERTS - 2)]


def test_the_load_of_microbatches_adds_up_and_evaluation_adds_nothing() -> None:
    part, hidden = experts(**DEEPSEEK), torch.randn(2, 17, DIM)
    for _ in range(2):
        part(hidden)
        part.take_routing()
    part.eval()(hidden)
    part.take_routing()
    assert one(part.load).sum() == 2 * hidden.shape[:2].numel() * part.rule.top_k


def test_biases_balance_a_biased_router_over_time() -> None:
    """The inputs are fixed and there is no gradient."""
    part, hidden = experts(**DEEPSEEK | {"balance_rate": 0.002}), torch.randn(8, 64, DIM)
    with torch.no_grad():
        part.router.weight.mul_(0.3)
        part.router.weight[0] += part.router.weight[1] * 3
    loads = []
    for _ in range(120):
        part(hidden)
        part.take_routing()
        load, part.load = one(part.load), None
        part.update_bias(load)
        loads.append((load.max() / load.double().mean()).item())
    assert loads[0] > 1.7
    assert max(loads[-10:]) < 1.15


def test_the_bias_stays_in_float32_where_weights_are_rounded() -> None:
    part = deepseek()
    before = bias_of(part).clone()
    part.to(torch.bfloat16)
    assert part.up.weight.dtype == torch.bfloat16
    assert torch.equal(bias_of(part), before)
    assert bias_of(part.double()).dtype == torch.float64


def test_uniform_routing_ignores_groups_and_biases() -> None:
    choice = deepseek(routing="uniform")._route(torch.randn(24, DIM))
    assert choice.experts.flatten().bincount().tolist() == [6] * NUM_EXPERTS


GATED: dict[str, Any] = {"renormalize": True, "shared_ffn_dim": 10, "shared_gate": True}


def test_a_gated_shared_expert_equals_qwen3_next() -> None:
    ours = experts(**GATED)
    config = Qwen3NextConfig(
        hidden_size=DIM,
        moe_intermediate_size=FFN_DIM,
        shared_expert_intermediate_size=10,
        num_experts=len(ours.up.weight),
        num_experts_per_tok=ours.rule.top_k,
        norm_topk_prob=True,
    )
    config._experts_implementation = "eager"
    theirs = Qwen3NextSparseMoeBlock(config)
    theirs.load_state_dict(to_qwen3_next({k: v.detach() for k, v in ours.named_parameters()}))
    hidden = [each.requires_grad_() for each in torch.randn(1, 2, 17, DIM).repeat(2, 1, 1, 1)]
    found, expected = ours(hidden[0]), theirs(hidden[1])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.autograd.backward([found, expected], [torch.ones_like(found)] * 2)
    torch.testing.assert_close(hidden[0].grad, hidden[1].grad, rtol=1e-4, atol=1e-5)
    gradients = {name: one(weight.grad) for name, weight in ours.named_parameters()}
    for name, gradient in to_qwen3_next(gradients).items():
        wanted = theirs.get_parameter(name).grad
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def to_qwen3_next(named: dict[str, Tensor]) -> dict[str, Tensor]:
    shared = ("gate", "up", "down")
    return {
        "gate.weight": named["router.weight"],
        "experts.gate_up_proj": torch.cat([named["gate.weight"], named["up.weight"]], 1),
        "experts.down_proj": named["down.weight"],
        "shared_expert_gate.weight": named["shared_gate.weight"],
        **{f"shared_expert.{k}_proj.weight": named[f"shared.{k}.weight"] for k in shared},
    }


def test_the_gate_of_a_shared_expert_is_scaled_as_a_router() -> None:
    gate = dict(experts(**GATED).named_parameters())["shared_gate.weight"]
    assert gate.shape == (1, DIM)
    name = "layers.3.mlp.shared_gate.weight"
    assert weight_kind(name, gate.dim()) == "router"
    assert not is_hidden_matrix(name, gate)
