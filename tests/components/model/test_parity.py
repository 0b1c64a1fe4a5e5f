"""The decoder against independent models: Bloom, GPT-2 and OLMo, and OLMoE's attention."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OlmoConfig,
    OlmoeConfig,
    OlmoForCausalLM,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.olmoe.modeling_olmoe import OlmoeAttention, OlmoeRotaryEmbedding

from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import AlibiSpec, LearnedSpec, RotarySpec
from components.errors import RecipeError
from components.model.attention import Attention, AttentionContext
from components.model.decoder import Decoder
from components.model.norms import Norm
from components.model.positions import Rotary, alibi_slopes
from tests.components.model.comparison import (
    GRADIENT_TOLERANCE,
    LOGITS_TOLERANCE,
    assert_equal_models,
    give_weights,
    gradient_of,
    randomized,
    relative_difference,
)
from tests.components.model.mappings import to_bloom, to_gpt2, to_llama
from tests.components.model.specs import (
    LAYER_NORM,
    RMS_NORM,
    attention_spec,
    mlp_spec,
    small_decoder,
)


@pytest.mark.parametrize("layer_scaling", [True, False])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(7, 6), (12, 5), (8, 3)])
def test_logits_and_gradients_equal_an_independent_bloom(num_heads, head_dim, layer_scaling):
    dim = num_heads * head_dim
    sizes = {"num_heads": num_heads, "num_kv_heads": num_heads, "head_dim": head_dim}
    parts: dict[str, Any] = {"norm": LAYER_NORM, "embedding_norm": LAYER_NORM}
    parts |= {"mlp": mlp_spec(4 * dim, "gelu_tanh", bias=True), "positions": AlibiSpec()}
    parts |= {"layer_scaling": layer_scaling}
    model = randomized(small_decoder(dim=dim, vocab_size=67, bias=True, **sizes, **parts))
    config = BloomConfig(
        vocab_size=67,
        hidden_size=dim,
        n_layer=2,
        n_head=num_heads,
        layer_norm_epsilon=1e-5,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    mapped = partial(to_bloom, num_heads=num_heads)
    assert_equal_models(model, BloomForCausalLM(config), mapped, sequence_length=37)


@pytest.mark.parametrize("num_heads", [1, 2, 7, 12, 16, 32, 112])
def test_slopes_equal_the_published_model(num_heads: int) -> None:
    two_places = torch.ones(1, 2, dtype=torch.int64)
    theirs = build_alibi_tensor(two_places, num_heads, torch.float32)[:, 0, 1]
    assert alibi_slopes(num_heads) == pytest.approx(theirs.tolist(), rel=1e-6)


def test_112_heads_have_the_slopes_of_64_and_every_second_slope_of_128() -> None:
    slopes = alibi_slopes(112)
    assert slopes[:64] == [2 ** (-8 * i / 64) for i in range(1, 65)]
    assert slopes[64:] == [2 ** (-8 * i / 128) for i in range(1, 97, 2)]


def gpt2_like(activation: str, dropout: float) -> Decoder:
    parts: dict[str, Any] = {"norm": LAYER_NORM, "positions": LearnedSpec(num_positions=41)}
    parts |= {"mlp": mlp_spec(93, activation, bias=True), "dropout": dropout}
    sizes = {"dim": 35, "vocab_size": 67, "num_heads": 5, "num_kv_heads": 5, "head_dim": 7}
    return randomized(small_decoder(bias=True, attention_dropout=dropout, **sizes, **parts))


def gpt2(activation: str, dropout: float) -> GPT2LMHeadModel:
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
def test_logits_and_gradients_equal_an_independent_gpt2(ours, theirs, sequence_length):
    model, reference = gpt2_like(ours, dropout=0.0), gpt2(theirs, dropout=0.0)
    assert_equal_models(model, reference, to_gpt2, sequence_length=sequence_length)


def test_dropout_is_applied_where_gpt2_applies_it() -> None:
    model, reference = gpt2_like("gelu", 0.25), gpt2("gelu", 0.25).train()
    give_weights(reference, model, to_gpt2)
    tokens = torch.randint(67, (3, 41))
    torch.manual_seed(11)
    ours = model(tokens)
    torch.manual_seed(11)
    theirs = reference(tokens, use_cache=False).logits
    assert relative_difference(ours, theirs) < LOGITS_TOLERANCE
    assert relative_difference(model.eval()(tokens), theirs) > 0.01


def test_rejects_sequences_longer_than_the_learned_positions() -> None:
    model = gpt2_like("gelu", dropout=0.0)
    with pytest.raises(RecipeError, match=r"num_positions: 41 learned positions for 42 tokens"):
        model(torch.zeros(1, 42, dtype=torch.int64))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_equal_an_independent_olmo(tied: bool) -> None:
    bare = NormSpec(eps=1e-5, center=True, weight=False, bias=False)
    sizes = {"dim": 60, "vocab_size": 67, "num_heads": 6, "num_kv_heads": 3, "head_dim": 10}
    model = randomized(small_decoder(tied_embeddings=tied, norm=bare, **sizes))
    config = OlmoConfig(
        vocab_size=67,
        hidden_size=60,
        intermediate_size=77,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        tie_word_embeddings=tied,
        pad_token_id=None,  # its row would get no gradient
    )
    config._attn_implementation = "eager"
    theirs = OlmoForCausalLM(config)
    assert_equal_models(model, theirs, to_llama, sequence_length=37)


@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_attention_with_query_key_norm_equals_an_independent_olmoe(num_kv_heads):
    config = OlmoeConfig(
        hidden_size=60,
        num_attention_heads=6,
        num_key_value_heads=num_kv_heads,
        rms_norm_eps=1e-5,
    )
    config._attn_implementation = "eager"
    theirs = OlmoeAttention(config, layer_idx=0)
    ours = Attention(attention_spec(6, num_kv_heads, 10, qk_norm=RMS_NORM), dim=60)
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
