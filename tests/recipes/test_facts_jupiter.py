"""OpenEuroLLM's references on JUPITER against their configurations.

Values are typed from config/experiments/ and config/backend/megatron/ of
github.com/OpenEuroLLM/oellm-autoexp at c6d0cc0.
"""

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from tests.recipes.compositions import composed

# layers, width, heads, width of the feed-forward
OPENSCI = {
    "opensci_130m": (22, 512, 8, 2_256),
    "opensci_400m": (22, 1_024, 16, 3_840),
    "opensci_1b3": (24, 2_048, 32, 5_440),
    "opensci_1b7": (24, 2_048, 32, 8_192),
}
QWEN3 = "qwen3_1b7_jupiter"
# oellm_autoexp/postprocess/resources/qwen3/config.json, to which the run is converted
QWEN3_CONFIG: dict[str, Any] = {
    "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2_048,
    "intermediate_size": 6_144, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "vocab_size": 151_936,
}  # fmt: skip


@pytest.mark.parametrize("name", OPENSCI)
def test_each_reference_has_the_parameters_of_its_shape(name: str) -> None:
    """A Llama with biases of transformers, and norms of 64 for queries and keys."""
    layers, dim, heads, ffn = OPENSCI[name]
    config = LlamaConfig(
        vocab_size=50_304,
        hidden_size=dim,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        head_dim=64,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        count = AutoModelForCausalLM.from_config(config).num_parameters()
    assert composed(name, "full").derived_numbers.parameters.total == count + layers * 2 * 64


def test_the_qwen3_reference_is_transformers_qwen3_to_the_parameter() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen3Config(**QWEN3_CONFIG))
    recipe = composed(QWEN3, "full")
    assert recipe.derived_numbers.parameters.total == model.num_parameters() == 1_720_574_976
    features = read_decoder(recipe.model)
    family = choose_family(features)
    assert family.architecture == "Qwen3ForCausalLM"
    shape = family.write_hf_config(features) | {"vocab_size": features.vocab_size}
    assert {key: shape[key] for key in QWEN3_CONFIG} == QWEN3_CONFIG
    assert recipe.model["positions"]["base"] == 1_000_000


def test_the_qwen3_tokenizer_cuts_text_as_transformers_does() -> None:
    tokenizer = composed(QWEN3, "full").tokenizer
    assert (tokenizer["pattern"], tokenizer["normalization"]) == (PRETOKENIZE_REGEX, "nfc")
    assert tokenizer["vocab_size"] == 151_643 + 26  # pieces and special pieces
