"""The decoder with learned positions and biases against an independent GPT-2."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from components.config.model_spec.feed_forward import MLPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import LearnedSpec
from components.errors import RecipeError
from components.model.decoder import Decoder
from tests.components.model.comparison import (
    LOGITS_TOLERANCE,
    assert_equal_models,
    give_weights,
    randomized,
    relative_difference,
)
from tests.components.model.mappings import to_gpt2
from tests.components.model.specs import small_decoder

Build = Callable[..., Decoder]


def gpt2_like(activation: Literal["gelu", "gelu_tanh"], dropout: float) -> Decoder:
    return randomized(
        small_decoder(
            dim=35,
            vocab_size=67,
            num_heads=5,
            num_kv_heads=5,
            head_dim=7,
            bias=True,
            positions=LearnedSpec(num_positions=41),
            mlp=MLPSpec(ffn_dim=93, activation=activation, gated=False, bias=True),
            norm=NormSpec(eps=1e-5, center=True, weight=True, bias=True),
            dropout=dropout,
            attention_dropout=dropout,
        )
    )


def gpt2(activation: Literal["gelu", "gelu_new"], dropout: float) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=67,
        n_positions=41,
        n_embd=35,
        n_inner=93,
        n_layer=2,
        n_head=5,
        activation_function=activation,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


@pytest.mark.parametrize("sequence_length", [1, 41])
@pytest.mark.parametrize(("ours", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_new")])
def test_logits_and_gradients_equal_those_of_an_independent_gpt2(
    ours: Literal["gelu", "gelu_tanh"],
    theirs: Literal["gelu", "gelu_new"],
    sequence_length: int,
) -> None:
    model = gpt2_like(small_decoder, ours, dropout=0.0)
    reference = gpt2(theirs, dropout=0.0)
    assert_equal_models(model, reference, to_gpt2, sequence_length=sequence_length)


def test_dropout_strikes_where_it_does_in_gpt2() -> None:
    model, reference = gpt2_like(small_decoder, "gelu", 0.25), gpt2("gelu", 0.25).train()
    give_weights(reference, model, to_gpt2)
    tokens = torch.randint(67, (3, 41))
    torch.manual_seed(11)
    ours = model(tokens)
    torch.manual_seed(11)
    theirs = reference(tokens, use_cache=False).logits
    assert relative_difference(ours, theirs) < LOGITS_TOLERANCE
    assert relative_difference(model.eval()(tokens), theirs) > 0.01


def test_rejects_sequences_longer_than_the_learned_positions() -> None:
    model = gpt2_like(small_decoder, "gelu", dropout=0.0)
    with pytest.raises(RecipeError, match=r"num_positions: 41 learned positions for 42 tokens"):
        model(torch.zeros(1, 42, dtype=torch.int64))
