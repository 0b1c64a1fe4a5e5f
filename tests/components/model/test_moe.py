"""The experts, path against path and against transformers' sparse block."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

from components.config.model_spec.feed_forward import ExpertsSpec
from components.model import moe
from components.model.expert_products import (
    Matrices,
    grouped_products,
    mix_in_loop,
    sorted_products,
)
from components.model.mlp import ACTIVATIONS
from components.model.moe import Experts

# Rows of whole 16 bytes also in bfloat16, which `grouped_mm` asks for.
DIM, FFN_DIM, NUM_EXPERTS, TOP_K = 24, 16, 7, 3
# Of the largest element: sums of float32 taken in another order.
TOLERANCE = 1e-6

Mix = Callable[..., Tensor]
MIXES: list[Mix] = [sorted_products, grouped_products]


def experts(**changes: Any) -> Experts:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "num_experts": NUM_EXPERTS,
        "top_k": TOP_K,
        "ffn_dim": FFN_DIM,
        "activation": "silu",
        "gated": True,
        "renormalize": False,
        "routing": "learned",
        "auxiliary_loss": 0.01,
        "auxiliary_scope": "model",
        "z_loss": 0.0,
        "path": "auto",
    }
    return Experts(ExpertsSpec(**settings | changes), dim=DIM)


def matrices(*, gated: bool, activation: str, dtype: torch.dtype) -> Matrices:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        scaled: Tensor = drawn / shape[-1] ** 0.5
        return scaled.to(dtype).requires_grad_()

    return Matrices(
        draw(NUM_EXPERTS, FFN_DIM, DIM) if gated else None,
        draw(NUM_EXPERTS, FFN_DIM, DIM),
        draw(NUM_EXPERTS, DIM, FFN_DIM),
        ACTIVATIONS[activation],
    )


def mixed_and_gradients(mix: Mix, weights: Matrices, chosen: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(len(chosen), DIM, generator=generator).requires_grad_()
    shares = torch.rand(chosen.shape, generator=generator).requires_grad_()
    upstream = torch.randn(len(chosen), DIM, generator=generator)
    mixed = mix(tokens, shares, chosen, weights)
    inputs = [tokens, shares, *stacks(weights)]
    return [mixed, *torch.autograd.grad(mixed, inputs, upstream)]


def stacks(weights: Matrices) -> list[Tensor]:
    return [x for x in (weights.gate, weights.up, weights.down) if x is not None]


def assert_all_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= TOLERANCE * other.abs().max()


def spread_choice(tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(tokens, NUM_EXPERTS, generator=generator).topk(TOP_K).indices


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_the_paths_agree_in_value_and_in_every_gradient(
    mix: Mix, gated: bool, activation: str
) -> None:
    weights = matrices(gated=gated, activation=activation, dtype=torch.float32)
    chosen = spread_choice(41)
    assert_all_close(
        mixed_and_gradients(mix, weights, chosen),
        mixed_and_gradients(mix_in_loop, weights, chosen),
    )


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "chosen",
    [
        torch.tensor([[4, 0, 6]]),
        torch.tensor([[5]]).expand(19, 1),
        torch.tensor([[2, 3], [3, 2], [2, 0]]),
        torch.arange(NUM_EXPERTS).expand(4, -1),
    ],
    ids=["one token", "all tokens to one expert", "empty experts", "every expert"],
)
def test_the_paths_agree_at_the_edges(mix: Mix, chosen: Tensor) -> None:
    weights = matrices(gated=True, activation="silu", dtype=torch.float32)
    assert_all_close(
        mixed_and_gradients(mix, weights, chosen),
        mixed_and_gradients(mix_in_loop, weights, chosen),
    )


@pytest.mark.parametrize("gated", [True, False])
def test_the_written_out_gradients_are_the_numerical_ones(gated: bool) -> None:
    weights = matrices(gated=gated, activation="silu", dtype=torch.float64)
    tokens = torch.randn(5, DIM, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(5, TOP_K, dtype=torch.float64, requires_grad=True)

    def mix(tokens: Tensor, shares: Tensor, *learned: Tensor) -> Tensor:
        gate = learned[0] if gated else None
        given = Matrices(gate, learned[-2], learned[-1], weights.activation)
        mixed: Tensor = sorted_products(tokens, shares, spread_choice(5), given)
        return mixed

    assert torch.autograd.gradcheck(mix, (tokens, shares, *stacks(weights)), fast_mode=True)


def test_sums_of_bfloat16_products_are_kept_in_float32() -> None:
    weights = matrices(gated=True, activation="silu", dtype=torch.bfloat16)
    tokens = torch.randn(9, DIM).bfloat16()
    shares = torch.rand(9, TOP_K).bfloat16()
    gate, up, down = (x.detach().double() for x in stacks(weights))
    exact = Matrices(gate, up, down, weights.activation)
    expected = mix_in_loop(tokens.double(), shares.double(), spread_choice(9), exact)
    for mix in [*MIXES, mix_in_loop]:
        mixed = mix(tokens, shares, spread_choice(9), weights)
        assert mixed.dtype == torch.float32
        torch.testing.assert_close(mixed.double(), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("path", ["auto", "grouped", "loop"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_equals_the_sparse_block_of_transformers(
    path: Literal["auto", "grouped", "loop"], renormalize: bool
) -> None:
    ours = experts(path=path, renormalize=renormalize)
    theirs = reference_block(ours)
    hidden = torch.randn(3, 13, DIM)
    upstream = torch.randn(3, 13, DIM)
    inputs = [hidden.clone().requires_grad_(), hidden.clone().requires_grad_()]
    outputs = [ours(inputs[0]), theirs(inputs[1])]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    for output in outputs:
        output.backward(upstream)
    assert ours.gate is not None
    merged = torch.cat([one(ours.gate.weight.grad), one(ours.up.weight.grad)], dim=1)
    pairs = [
        (inputs[0].grad, inputs[1].grad),
        (ours.router.weight.grad, theirs.gate.weight.grad),
        (merged, theirs.experts.gate_up_proj.grad),
        (ours.down.weight.grad, theirs.experts.down_proj.grad),
    ]
    for mine, reference in pairs:
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


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
    """Take for granted that a gradient is there."""
    assert gradient is not None
    return gradient


def test_one_expert_of_one_is_the_dense_mlp() -> None:
    part = experts(num_experts=1, top_k=1)
    assert part.gate is not None
    hidden = torch.randn(2, 4, DIM)
    inner = F.silu(hidden @ part.gate.weight[0].T) * (hidden @ part.up.weight[0].T)
    torch.testing.assert_close(part(hidden), inner @ part.down.weight[0].T)


def test_no_token_is_dropped_where_one_expert_gets_all_of_many() -> None:
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


def test_forced_uniform_routing_gives_token_s_the_experts_from_s_on() -> None:
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


def test_the_grouped_path_reads_no_values_and_so_runs_on_fake_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moe, "has_grouped_kernel", lambda device: True)
    # In bfloat16, the only type that torch can fake a grouped product in.
    with FakeTensorMode(), torch.autocast("cpu", dtype=torch.bfloat16):
        part = experts()
        mixed = part(torch.randn(2, 8, DIM))
        mixed.sum().backward()
        assert mixed.shape == (2, 8, DIM)
        assert one(part.down.weight.grad).shape == part.down.weight.shape


def test_only_the_last_product_writes_the_residual_stream() -> None:
    part = experts()
    marked = [
        name for name, module in part.named_modules() if getattr(module, "writes_residual", 0)
    ]
    assert marked == ["down"]
    assert {name: tuple(x.shape) for name, x in part.named_parameters()} == {
        "router.weight": (NUM_EXPERTS, DIM),
        "gate.weight": (NUM_EXPERTS, FFN_DIM, DIM),
        "up.weight": (NUM_EXPERTS, FFN_DIM, DIM),
        "down.weight": (NUM_EXPERTS, DIM, FFN_DIM),
    }


def test_stacks_start_like_linear_maps() -> None:
    bound = DIM**-0.5
    largest = experts().up.weight.abs().max().item()
    assert 0.99 * bound < largest <= bound
    assert nn.Linear(DIM, 50).weight.abs().max().item() <= bound
