"""Attention of newer models against the classes of ``transformers``."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GptOssConfig, Qwen3NextConfig
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from components.config.model_spec.attention import GroupedQueryAttentionSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import RotarySpec
from components.model.attention import Attention, AttentionContext
from components.model.first_weights import initial_constant
from components.model.parametrization import weight_kind
from components.model.positions import Rotary
from components.optim.muon import is_hidden_matrix
from tests.components.model import specs
from tests.components.model.comparison import gradient_of, relative_difference
from tests.components.model.flex_on_cpu import flex_on_cpu

DIM, HEADS, GROUPS, WIDTH, LENGTH = 24, 6, 2, 8, 11
BASE = 10_000.0
RMS = NormSpec(eps=1e-6, center=False, weight=True, bias=False)
TOLERANCE = 1e-5
MAPS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
MAPS |= {"query_norm": "q_norm", "key_norm": "k_norm"}
Named = dict[str, Tensor]


def attention_spec(**changes: Any) -> GroupedQueryAttentionSpec:
    return specs.attention_spec(HEADS, GROUPS, WIDTH, **{"bias": True} | changes)


def attention(**changes: Any) -> Attention:
    torch.manual_seed(2)
    part = Attention(attention_spec(**changes), dim=DIM)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_(std=0.4)
    return part


def scope_of(spec: RotarySpec, window: int | None = None) -> AttentionContext:
    rotary = Rotary(spec, dim=DIM, num_heads=HEADS, head_dim=WIDTH)
    scope = AttentionContext(encoding=rotary(torch.arange(LENGTH)), documents=None)
    return scope.for_window(window)


def renamed(named: Named) -> Named:
    """Rename our tensors to theirs."""
    return {
        ".".join(MAPS.get(part, part) for part in name.split(".")): tensor
        for name, tensor in named.items()
    }


def to_qwen3_next(named: Named) -> Named:
    """Join query and gate head by head."""
    joined = {}
    for name, tensor in renamed(named).items():
        gate = named.get(name.replace("q_proj", "gate"))
        if "q_proj" in name and gate is not None:
            heads = [part.unflatten(0, (HEADS, -1)) for part in (tensor, gate)]
            joined[name] = torch.cat(heads, 1).flatten(0, 1)
        elif "gate" not in name:
            joined[name] = tensor
    return joined


def assert_equal_parts(
    ours: Attention, theirs: nn.Module, scope: AttentionContext, **given: Any
) -> None:
    """Compare results and the gradients of inputs and weights; ``to`` maps our tensors."""
    to = given.pop("to")
    torch.manual_seed(5)
    hidden, upstream = torch.randn(2, 2, LENGTH, DIM)
    inputs = [hidden.clone().requires_grad_() for _ in range(2)]
    found = ours(inputs[0], scope)
    expected, _ = theirs(inputs[1], **given)
    assert relative_difference(found, expected) < TOLERANCE
    torch.autograd.backward([found, expected], [upstream, upstream])
    assert relative_difference(gradient_of(inputs[0]), gradient_of(inputs[1])) < TOLERANCE
    gradients = to({name: gradient_of(weight) for name, weight in ours.named_parameters()})
    reference = {name: gradient_of(weight) for name, weight in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    # Softmax cancels the key's bias before rotation: compare with the largest gradient.
    largest = max(gradient.abs().max().item() for gradient in reference.values())
    for name, gradient in gradients.items():
        difference = (gradient - reference[name]).abs().max().item()
        assert difference < TOLERANCE * largest, name


def config_of(kind: Any, **rotary: float) -> Any:
    config = kind(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=WIDTH,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": BASE, **rotary},
    )
    config._attn_implementation = "eager"
    return config


def causal_mask(window: int | None = None) -> Tensor:
    place = torch.arange(LENGTH)
    behind = place[:, None] - place
    seen = (behind >= 0) & (behind < (window or LENGTH))
    return torch.zeros(LENGTH, LENGTH).masked_fill(~seen, -torch.inf)[None, None]


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_gated_attention_equals_qwen3_next(fraction: float) -> None:
    config = config_of(Qwen3NextConfig, partial_rotary_factor=fraction)
    ours = attention(output_gate=True, qk_norm=RMS, qk_norm_over="each_head")
    theirs = qwen3_next.Qwen3NextAttention(config, layer_idx=0)
    state = to_qwen3_next(copy.deepcopy(ours.state_dict()))
    for norm in ("q_norm.weight", "k_norm.weight"):
        state[norm] -= 1.0  # their norms multiply by 1 + weight
    theirs.load_state_dict(state)
    rotary = qwen3_next.Qwen3NextRotaryEmbedding(config)
    places = torch.arange(LENGTH)[None]
    assert_equal_parts(
        ours,
        theirs,
        scope_of(RotarySpec(base=BASE, rotary_fraction=fraction)),
        to=to_qwen3_next,
        position_embeddings=rotary(torch.zeros(1), places),
        attention_mask=causal_mask(),
    )


def assert_counted(**changes: Any) -> Named:
    """Compare the counts of a specification with the part; return the weights by name."""
    spec, part = attention_spec(**changes), attention(**changes)
    weights = dict(part.named_parameters())
    assert spec.count_parameters(DIM) == sum(weight.numel() for weight in weights.values())
    matrices = sum(weight.numel() for weight in weights.values() if weight.dim() > 1)
    assert spec.count_matrix_parameters(DIM) == matrices
    return {f"layers.3.attention.{name}": weight for name, weight in weights.items()}


@pytest.mark.parametrize("bias", [False, True])
def test_an_output_gate_is_counted_and_scaled_as_a_hidden_matrix(bias: bool) -> None:
    weights = assert_counted(output_gate=True, bias=bias)
    gate = "layers.3.attention.gate.weight"
    assert weight_kind(gate, weights[gate].dim()) == "hidden"
    assert is_hidden_matrix(gate, weights[gate])
    assert ("layers.3.attention.gate.bias" in weights) is bias


@pytest.mark.parametrize(
    ("head_dim", "fraction", "width"),
    [(256, 0.25, 64), (80, 0.4, 32), (10, 0.25, 2), (6, 0.1, 2), (30, 0.5, 16), (7, 1.0, 7)],
)
def test_rotated_channels_are_whole_pairs(head_dim: int, fraction: float, width: int) -> None:
    spec = RotarySpec(base=BASE, rotary_fraction=fraction)
    assert spec.rotary_width(head_dim) == width


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("flex", [False, True], ids=["dense", "flex"])
def test_attention_with_sinks_equals_gpt_oss(window: int | None, flex: bool) -> None:
    config = config_of(GptOssConfig)
    ours = attention(sinks=True)
    theirs = gpt_oss.GptOssAttention(config, layer_idx=0)
    theirs.load_state_dict(renamed(ours.state_dict()))
    rotary = gpt_oss.GptOssRotaryEmbedding(config)
    with flex_on_cpu() if flex else nullcontext():
        assert_equal_parts(
            ours,
            theirs,
            scope_of(RotarySpec(base=BASE), window),
            to=renamed,
            position_embeddings=rotary(torch.zeros(1), torch.arange(LENGTH)[None]),
            attention_mask=causal_mask(window),
        )


def test_sinks_are_counted_start_at_zero_and_scale_as_a_vector() -> None:
    name, weights = "layers.3.attention.sinks", assert_counted(sinks=True)
    assert weights[name].shape == (HEADS,)
    assert initial_constant(attention(sinks=True), "sinks") == 0.0
    assert weight_kind(name, weights[name].dim()) == "vector"
    assert not is_hidden_matrix(name, weights[name])
