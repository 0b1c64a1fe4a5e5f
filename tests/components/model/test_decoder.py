"""The decoder against an independent Llama, at full size on `meta`, and cut into stages."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from components.build import build_node
from components.model.decoder import Decoder
from tests.components.model.comparison import assert_equal_models, gradient_of, randomized
from tests.components.model.mappings import to_llama
from tests.components.model.specs import small_decoder
from tests.recipes.compositions import compose


def llama_like(model: Decoder, heads: int = 6, groups: int = 2, width: int = 10) -> Any:
    config = LlamaConfig(
        vocab_size=67,
        hidden_size=48,
        intermediate_size=77,
        num_hidden_layers=model.num_layers,
        rms_norm_eps=1e-5,
        tie_word_embeddings=model.head is None,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width,
    )
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", [(6, 2, 10), (6, 6, 8), (3, 1, 2)])
@pytest.mark.parametrize("sequence_length", [1, 37])
def test_logits_and_gradients_equal_an_independent_llama(tied, heads, sequence_length):
    sizes = dict(zip(("num_heads", "num_kv_heads", "head_dim"), heads, strict=True))
    model = randomized(small_decoder(tied_embeddings=tied, **sizes))
    llama = llama_like(model, *heads)
    assert_equal_models(model, llama, to_llama, sequence_length=sequence_length)


def test_padded_rows_take_part_in_the_softmax_and_are_trained_down() -> None:
    model = randomized(small_decoder(tied_embeddings=False))
    tokens = torch.randint(61, (2, 9))
    torch.autograd.backward(model.compute_loss(tokens, tokens))
    assert model.head is not None
    assert gradient_of(model.head.weight)[61:].abs().sum() > 0
    lean = copy.deepcopy(model)
    assert lean.head is not None
    lean.head.weight = nn.Parameter(model.head.weight[:61].detach())
    assert model.compute_loss(tokens, tokens) > lean.compute_loss(tokens, tokens)


def test_a_later_token_changes_no_earlier_logit() -> None:
    model = randomized(small_decoder())
    tokens = torch.randint(61, (1, 20))
    changed = tokens.clone()
    changed[0, 13] = (changed[0, 13] + 1) % 61
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:13].max() < 1e-5
    assert difference[13:].min() > 1e-5


def test_the_full_size_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = build_node(compose("teuken7b", "scale=full").model, "model")
    padded = sum(parameter.numel() for parameter in model.parameters())
    padding = (
        model.embedding.num_embeddings - model.vocab_size
    ) * model.embedding.embedding_dim
    assert padded == 7_453_544_448
    assert padded - padding == 7_452_725_248
    assert model.head is None


def test_bfloat16_keeps_its_precision_outside_and_float32_in_the_loss() -> None:
    model = randomized(small_decoder())
    tokens = torch.randint(61, (2, 33))
    expected = model.compute_loss(tokens, tokens).item()
    model = model.bfloat16()
    assert model(tokens).dtype == torch.bfloat16
    loss = model.compute_loss(tokens, tokens)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=0.02)
    torch.autograd.backward(loss)
    assert all(
        gradient_of(parameter).dtype == torch.bfloat16 for parameter in model.parameters()
    )
