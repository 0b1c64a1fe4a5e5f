"""Latent attention, against DeepSeek-V3's of transformers."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from components.attention_backends import BACKENDS
from components.config.model_spec.attention import LatentAttentionSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import RotarySpec
from components.config.model_spec.rotary_scaling import YarnScalingSpec
from components.model.attention import AttentionContext
from components.model.latent_attention import LatentAttention
from components.model.positions import Rotary
from tests.components.model.flex_on_cpu import flex_on_cpu

DIM, HEADS, LENGTH = 32, 3, 11
WIDTHS: dict[str, Any] = {"head_dim": 14, "rotary_dim": 6, "value_dim": 10}
RANKS: dict[str, Any] = {"query_rank": 12, "key_value_rank": 9}


def latent(**changes: Any) -> LatentAttention:
    torch.manual_seed(0)
    norm = NormSpec(eps=1e-6, center=False, weight=True, bias=False)
    settings: dict[str, Any] = {"num_heads": HEADS, "num_kv_heads": HEADS, "dropout": 0.0}
    settings |= {"latent_norm": norm, "backends": BACKENDS}
    part = LatentAttention(LatentAttentionSpec(**settings | WIDTHS | RANKS | changes), dim=DIM)
    with torch.no_grad():
        for weight in part.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return part


YARN = YarnScalingSpec(factor=40.0, original_tokens=8, beta_fast=1.0, beta_slow=0.03)
YARN_THERE = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 8}
YARN_THERE |= {"beta_fast": 1.0, "beta_slow": 0.03, "mscale": 1.0, "mscale_all_dim": 1.0}


def scope_of(
    documents: Tensor | None = None, scaling: YarnScalingSpec | None = None
) -> AttentionContext:
    rotary = Rotary(
        RotarySpec(base=100.0, scaling=scaling), dim=DIM, num_heads=HEADS, head_dim=6
    )
    return AttentionContext(encoding=rotary(torch.arange(LENGTH)), documents=documents)


def reference(ours: LatentAttention, scaled: bool = False) -> DeepseekV3Attention:
    """Rotated channels are in halves, like ours, not in pairs."""
    config = DeepseekV3Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=None if ours.query_down is None else RANKS["query_rank"],
        kv_lora_rank=RANKS["key_value_rank"],
        qk_rope_head_dim=6,
        qk_nope_head_dim=8,
        v_head_dim=10,
        rope_interleave=False,
        rope_parameters={
            "rope_theta": 100.0,
            **(YARN_THERE if scaled else {"rope_type": "default"}),
        },
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, layer_idx=0)
    names = {"kv_a_proj_with_mqa": "key_value_down", "kv_a_layernorm": "key_value_norm"}
    names |= {"kv_b_proj": "key_value", "o_proj": "output"}
    if ours.query_down is None:
        names |= {"q_proj": "query"}
    else:
        names |= {"q_a_proj": "query_down", "q_a_layernorm": "query_norm", "q_b_proj": "query"}
    weights = {f"{a}.weight": ours.get_parameter(f"{b}.weight") for a, b in names.items()}
    theirs.load_state_dict(weights)
    return theirs


@pytest.mark.parametrize("scaling", [None, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize("query_rank", [12, None])
def test_latent_attention_and_its_gradients_equal_deepseek(query_rank, scaling):
    ours = latent(query_rank=query_rank)
    theirs = reference(ours, scaled=scaling is not None)
    hidden = torch.randn(2, LENGTH, DIM, requires_grad=True)
    places = torch.arange(LENGTH)[None]
    angles = DeepseekV3RotaryEmbedding(theirs.config)(hidden, places)
    hidden_there = hidden.detach().clone().requires_grad_()
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
    expected, _ = theirs(hidden_there, angles, mask)
    found = ours(hidden, scope_of(scaling=scaling))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(found)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(hidden.grad, hidden_there.grad, rtol=1e-4, atol=1e-5)
    for name in ("key_value_down", "key_value", "query"):
        gradient = ours.get_parameter(f"{name}.weight").grad
        other = {"key_value_down": "kv_a_proj_with_mqa", "key_value": "kv_b_proj"}
        last = "q_proj" if query_rank is None else "q_b_proj"
        wanted = theirs.get_parameter(f"{other.get(name, last)}.weight").grad
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_flex_and_dense_attention_agree_for_values_narrower_than_keys() -> None:
    part, hidden = latent().double(), torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    documents = torch.tensor([0] * 4 + [1] * 7).expand(2, -1)
    found = []
    for kernel in (nullcontext, flex_on_cpu):
        for given in (None, documents):
            part.zero_grad()
            with kernel():
                mixed = part(hidden, scope_of(given))
                mixed.square().sum().backward()
            found.append((mixed, part.key_value.weight.grad))
    for one, other in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.equal(found[0][0], found[1][0])
