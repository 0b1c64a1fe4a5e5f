"""The decoder against an independent OLMo, and its query-key norm against OLMoE's attention."""

import pytest
import torch
from transformers import OlmoConfig, OlmoeConfig, OlmoForCausalLM
from transformers.models.olmoe.modeling_olmoe import OlmoeAttention, OlmoeRotaryEmbedding

from components.attention_backends import BACKENDS
from components.config.model_spec.attention import GroupedQueryAttentionSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import RotarySpec
from components.model.attention import Attention, AttentionContext
from components.model.norms import Norm
from components.model.positions import Rotary
from tests.components.model.comparison import (
    GRADIENT_TOLERANCE,
    LOGITS_TOLERANCE,
    assert_equal_models,
    gradient_of,
    randomized,
    relative_difference,
)
from tests.components.model.mappings import to_llama
from tests.components.model.specs import small_decoder


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_equal_those_of_an_independent_olmo(tied: bool) -> None:
    model = randomized(
        small_decoder(
            dim=60,
            vocab_size=67,
            tied_embeddings=tied,
            num_heads=6,
            num_kv_heads=3,
            head_dim=10,
            norm=NormSpec(eps=1e-5, center=True, weight=False, bias=False),
        )
    )
    config = OlmoConfig(
        vocab_size=67,
        hidden_size=60,
        intermediate_size=77,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        tie_word_embeddings=tied,
        pad_token_id=None,  # they stop the gradient of that row, which no text ever asks for
    )
    config._attn_implementation = "eager"
    theirs = OlmoForCausalLM(config)
    assert_equal_models(model, theirs, to_llama, sequence_length=37)


@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_attention_with_query_key_norm_equals_that_of_an_independent_olmoe(
    num_kv_heads: int,
) -> None:
    config = OlmoeConfig(
        hidden_size=60,
        num_attention_heads=6,
        num_key_value_heads=num_kv_heads,
        rms_norm_eps=1e-5,
    )
    config._attn_implementation = "eager"
    theirs = OlmoeAttention(config, layer_idx=0)
    ours = Attention(
        GroupedQueryAttentionSpec(
            num_heads=6,
            num_kv_heads=num_kv_heads,
            head_dim=10,
            bias=False,
            qk_norm=NormSpec(eps=1e-5, center=False, weight=True, bias=False),
            layer_scaling=False,
            dropout=0.0,
            backends=BACKENDS,
        ),
        dim=60,
    )
    for norm in (ours.query_norm, ours.key_norm):
        assert isinstance(norm, Norm)
        assert norm.weight is not None
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    prefix = "attention."
    state = to_llama({prefix + name: value for name, value in ours.state_dict().items()})
    theirs.load_state_dict({name.removeprefix("self_attn."): v for name, v in state.items()})

    hidden, places = torch.randn(2, 23, 60), torch.arange(23)
    angles = OlmoeRotaryEmbedding(config)(hidden, places[None])
    causal = torch.full((23, 23), -torch.inf).triu(1)[None, None]
    expected, _ = theirs(hidden, position_embeddings=angles, attention_mask=causal)
    encoding = Rotary(RotarySpec(base=10_000.0), dim=60, num_heads=6, head_dim=10)(places)
    mixed = ours(hidden, AttentionContext(encoding=encoding, documents=None))
    assert relative_difference(mixed, expected) < LOGITS_TOLERANCE

    torch.autograd.backward([expected.square().sum(), mixed.square().sum()])
    gradients = {prefix + name: gradient_of(p) for name, p in ours.named_parameters()}
    reference = {f"self_attn.{name}": gradient_of(p) for name, p in theirs.named_parameters()}
    for name, gradient in to_llama(gradients).items():
        assert relative_difference(gradient, reference[name]) < GRADIENT_TOLERANCE, name
