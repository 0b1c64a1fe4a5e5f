"""Experts against transformers' sparse block, and their routing."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

from components.model.moe import Experts
from tests.components.model.specs import experts_spec

# `grouped_mm` needs rows of a multiple of 16 bytes, also in bfloat16.
DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 24, 16, 7, 3


def experts(**changes: Any) -> Experts:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_experts": NUM_EXPERTS, "top_k": TOP_K, "ffn_dim": FFN_DIM}
    return Experts(experts_spec(**settings | {"auxiliary_loss": 0.01} | changes), dim=DIM)


@pytest.mark.parametrize("path", ["auto", "grouped", "loop"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_experts_equal_the_sparse_block_of_transformers(path, renormalize):
    ours = experts(path=path, renormalize=renormalize)
    theirs = reference_block(ours)
    hidden, upstream = torch.randn(2, 3, 13, DIM)
    inputs = [hidden.clone().requires_grad_(), hidden.clone().requires_grad_()]
    outputs = [ours(inputs[0]), theirs(inputs[1])]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    for output in outputs:
        output.backward(upstream)
    assert ours.gate is not None
    merged = torch.cat([one(ours.gate.weight.grad), one(ours.up.weight.grad)], dim=1)
    mine = [inputs[0].grad, ours.router.weight.grad, merged, ours.down.weight.grad]
    there = theirs.experts.gate_up_proj.grad, theirs.experts.down_proj.grad
    expected = [inputs[1].grad, theirs.gate.weight.grad, *there]
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def reference_block(ours: Experts) -> OlmoeSparseMoeBlock:
    config = OlmoeConfig(
        hidden_size=DIM,
        intermediate_size=FFN_DIM,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=ours.rule.renormalize,
    )
    config._experts_implementation = "eager"
    block = OlmoeSparseMoeBlock(config)
    assert ours.gate is not None
    with torch.no_grad():
        block.gate.weight.copy_(ours.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([ours.gate.weight, ours.up.weight], dim=1))
        block.experts.down_proj.copy_(ours.down.weight)
    return block


def one(gradient: Tensor | None) -> Tensor:
    """Return a gradient that must exist."""
    assert gradient is not None
    return gradient


def test_no_token_is_dropped_if_one_expert_gets_all_tokens() -> None:
    part = experts(num_experts=16, top_k=1)
    assert part.gate is not None
    hidden = torch.randn(2, 20, DIM)
    hidden[..., 0] = 1.0
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[5, 0] = 3.0
    inner = F.silu(hidden @ part.gate.weight[5].T) * (hidden @ part.up.weight[5].T)
    share = math.exp(3.0) / (math.exp(3.0) + 15)
    torch.testing.assert_close(part(hidden), share * (inner @ part.down.weight[5].T))


def test_a_single_expert_equals_a_dense_mlp() -> None:
    part = experts(num_experts=1, top_k=1)
    hidden = torch.randn(2, 4, DIM)
    gate, up, down = (part.get_parameter(f"{n}.weight")[0].T for n in ("gate", "up", "down"))
    torch.testing.assert_close(part(hidden), (F.silu(hidden @ gate) * (hidden @ up)) @ down)


def test_uniform_routing_rotates_through_the_experts() -> None:
    part = experts(routing="uniform")
    choice = part._route(torch.randn(9, DIM))
    for token in range(9):
        expected = {(token + place) % NUM_EXPERTS for place in range(TOP_K)}
        assert set(choice.experts[token].tolist()) == expected
    torch.testing.assert_close(choice.weights.sum(-1), torch.ones(9))


@pytest.mark.parametrize("path", ["grouped", "loop"])
def test_under_autocast_the_products_are_made_in_bfloat16(path: str) -> None:
    part = experts(path=path)
    hidden = torch.randn(1, 6, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = part(hidden)
    mixed.sum().backward()
    assert mixed.dtype == torch.bfloat16
    assert one(part.up.weight.grad).dtype == torch.float32
    torch.testing.assert_close(mixed.float(), part(hidden), rtol=0.05, atol=0.05)


def test_stacks_start_like_linear_maps() -> None:
    bound = DIM**-0.5
    largest = experts().up.weight.abs().max().item()
    assert 0.99 * bound < largest <= bound
    assert nn.Linear(DIM, 50).weight.abs().max().item() <= bound
