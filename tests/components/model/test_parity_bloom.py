"""The decoder with ALiBi and an embedding norm against an independent Bloom."""

from functools import partial

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from components.config.model_spec.feed_forward import MLPSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import AlibiSpec
from components.model.positions import alibi_slopes
from tests.components.model.comparison import assert_equal_models, randomized
from tests.components.model.mappings import to_bloom
from tests.components.model.specs import small_decoder

LAYER_NORM = NormSpec(eps=1e-5, center=True, weight=True, bias=True)


@pytest.mark.parametrize("layer_scaling", [True, False])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(7, 6), (12, 5), (8, 3)])
def test_logits_and_gradients_equal_those_of_an_independent_bloom(
    num_heads: int, head_dim: int, layer_scaling: bool
) -> None:
    dim = num_heads * head_dim
    model = randomized(
        small_decoder(
            dim=dim,
            vocab_size=67,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            bias=True,
            layer_scaling=layer_scaling,
            positions=AlibiSpec(),
            mlp=MLPSpec(ffn_dim=4 * dim, activation="gelu_tanh", gated=False, bias=True),
            norm=LAYER_NORM,
            embedding_norm=LAYER_NORM,
        )
    )
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
def test_the_slopes_are_those_of_the_published_model(num_heads: int) -> None:
    two_places = torch.ones(1, 2, dtype=torch.int64)
    theirs = build_alibi_tensor(two_places, num_heads, torch.float32)[:, 0, 1]
    assert alibi_slopes(num_heads) == pytest.approx(theirs.tolist(), rel=1e-6)


def test_112_heads_take_every_second_slope_of_128_after_those_of_64() -> None:
    slopes = alibi_slopes(112)
    assert slopes[:64] == [2 ** (-8 * i / 64) for i in range(1, 65)]
    assert slopes[64:] == [2 ** (-8 * i / 128) for i in range(1, 97, 2)]
