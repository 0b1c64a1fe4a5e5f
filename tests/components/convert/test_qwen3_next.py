"""Qwen3-Next and Kimi Linear: spellings of their configurations, their sizes, and refusals."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.config.rules.model import check_shape
from components.errors import RecipeError
from tests.components.convert.conftest import Export, published, random_model
from tests.components.convert.hybrid_section import qwen3_next
from tests.components.convert.test_config_json import Config, imported
from tests.components.convert.test_reading import assert_same_bits, edit_tensors, read

NAME = "qwen3_next_80b_a3b"
PARAMETERS = 79_674_391_296  # "80B"


def test_published_parameters_are_counted_to_the_unit(tmp_path: Path) -> None:
    config = published(NAME)
    shape = read_decoder(imported(tmp_path, config))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert shape.total_parameters == theirs.num_parameters() == PARAMETERS
    idle = 48 * (512 - 10) * 3 * 2_048 * 512
    assert shape.active_parameters == PARAMETERS - idle


def test_older_keys_give_the_same_model(tmp_path: Path) -> None:
    config = published(NAME)
    older = {
        key: config[key] for key in config if key not in {"rope_parameters", "layer_types"}
    }
    rotation = {"rope_theta": 10_000, "rope_scaling": None, "partial_rotary_factor": 0.25}
    older |= {"full_attention_interval": 4, "use_sliding_window": False, **rotation}
    expected = imported(tmp_path, config)
    assert imported(tmp_path, older) == expected
    for key in ("full_attention_interval", "partial_rotary_factor"):  # the class's defaults
        del older[key]
    assert imported(tmp_path, older) == expected
    denser = read_decoder(imported(tmp_path, older | {"full_attention_interval": 2}))
    assert denser.pattern == ("delta/mlp", "attention/mlp")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2, but recipes support only 1"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\], but recipes"),
        ({"layer_types": ["linear_attention"] * 48}, "would be exported as|pattern"),
        ({"layer_types": ["sliding_attention"] * 48}, "sliding_attention"),
        ({"use_sliding_window": True}, "use_sliding_window: True: Qwen3NextForCausalLM has no"),
        ({"full_attention_interval": "4"}, "full_attention_interval: '4' is not an integer"),
        ({"hidden_act": "gelu"}, "hidden_act: unsupported 'gelu'"),
        ({"rope_parameters": {"long_factor": 2.0}}, "rope_parameters.long_factor: unsupported"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.012}},
            "no Hugging Face class supports",
        ),
    ],
)
def test_unsupported_values_of_qwen3_next_are_refused(change, words, tmp_path):
    with pytest.raises(RecipeError, match=words):
        imported(tmp_path, published(NAME) | change)


def test_modules_for_further_tokens_are_ignored(export: Export) -> None:
    model = random_model(qwen3_next())
    folder = export(model, qwen3_next())
    edit_tensors(folder, lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(2, 4)}))
    found = read(folder, qwen3_next())
    assert_same_bits(found, model, rows=qwen3_next()["vocab_size"])


KIMI = published("kimi_linear_48b")
LINEAR = KIMI["linear_attn_config"]


def specified(folder: Path, config: Config) -> DecoderSpec:
    features = read_decoder(imported(folder, config))
    check_shape(features)
    return features


def test_parameters_of_kimi_linear_are_counted_to_the_unit(tmp_path: Path) -> None:
    features = specified(tmp_path, KIMI)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**KIMI))
    # The class counts biases of routers as buffers.
    assert theirs.num_parameters() == features.total_parameters == 49_122_675_072
    assert features.leading_layers == 1
    assert features.routed_layers == 26
    idle = 26 * 248 * 3 * 2_304 * 1_024
    assert features.active_parameters == features.total_parameters - idle


def test_keys_and_defaults_equal_the_class(tmp_path: Path) -> None:
    saved = json.loads(AutoConfig.for_model(**KIMI).to_json_string())
    saved.pop("linear_attn_config")
    assert {"layer_types", "mlp_layer_types", "linear_num_heads"} <= saved.keys()
    assert specified(tmp_path, saved) == specified(tmp_path, KIMI)
    unread = {"head_dim": 72, "rope_theta": 5e5, "rope_scaling": {"type": "linear"}}
    assert specified(tmp_path, KIMI | unread) == specified(tmp_path, KIMI)
    silent: Config = {"model_type": "kimi_linear", "vocab_size": 163_840}
    saved = json.loads(AutoConfig.for_model(**silent).to_json_string())
    found = specified(tmp_path, silent)
    assert found == specified(tmp_path, saved)
    full = [n for n in range(27) if found.shape_of(n).layer_type.has_attention]
    assert full == [4, 8, 12, 16, 20, 24]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mla_use_nope": False}, "mla_use_nope: False"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func: 'softmax'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True"),
        ({"hidden_act": "gelu"}, "hidden_act: unsupported 'gelu'"),
        ({"attention_bias": True}, "attention.bias"),
        ({"num_key_value_heads": 8}, "num_kv_heads"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: 2"),
        ({"num_shared_experts": 0}, "shared_ffn_dim"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers: 1"),
        ({"mlp_layer_types": ["sparse", "dense"] + ["sparse"] * 25}, "mlp_layer_types"),
        ({"layer_types": ["full_attention"] * 27}, "model.pattern"),
        ({"linear_attn_config": 3}, "linear_attn_config: 3 is not a mapping"),
        ({"linear_attn_config": {"head_dim": "8"}}, "linear_attn_config.head_dim: '8' is not"),
        ({"linear_attn_config": {"full_attn_layers": 4}}, "full_attn_layers: 4 is not a list"),
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, "gate_lower_bound"),
        ({"linear_attn_config": LINEAR | {"kda_layers": [1, 2]}}, "'kda_layers': [1, 2]"),
    ],
)
def test_unsupported_values_of_kimi_linear_are_refused(change, words, tmp_path):
    with pytest.raises(RecipeError) as refusal:
        specified(tmp_path, KIMI | change)
    assert words in str(refusal.value)
