"""Kimi Linear: spellings of its configuration, its size, and what recipes cannot express."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from command.composition.conf_groups import compose_defaults
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.config.rules.model import check_shape
from components.convert.config_json import check_same, read_config
from components.convert.family import choose_family
from components.errors import RecipeError
from tests.components.convert.base_section import RMS, Section
from tests.components.convert.conftest import published
from tests.components.convert.hybrid_section import kimi_linear
from tests.components.convert.test_config_json import overlaid, resolved

KIMI = published("kimi_linear_48b")
Config = dict[str, Any]


def imported(folder: Path, config: Config) -> DecoderSpec:
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    found = read_config(folder)
    section = overlaid(compose_defaults()["model"], found.section)
    section |= {"vocab_size": config["vocab_size"], "padded_vocab_size": config["vocab_size"]}
    section = resolved(section, section["norm"])
    check_same(found, section)
    features = read_decoder(section)
    check_shape(features)
    return features


def test_published_parameters_are_counted_to_the_unit(tmp_path: Path) -> None:
    features = imported(tmp_path, KIMI)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**KIMI))
    # The class counts biases of routers as buffers.
    assert theirs.num_parameters() == features.total_parameters == 49_122_675_072
    assert features.leading_layers == 1
    assert features.routed_layers == 26
    idle = 26 * 248 * 3 * 2_304 * 1_024
    assert features.active_parameters == features.total_parameters - idle


def test_keys_of_transformers_have_the_same_meaning(tmp_path: Path) -> None:
    saved = json.loads(AutoConfig.for_model(**KIMI).to_json_string())
    saved.pop("linear_attn_config")
    assert {"layer_types", "mlp_layer_types", "linear_num_heads"} <= saved.keys()
    assert imported(tmp_path, saved) == imported(tmp_path, KIMI)


def test_keys_that_the_class_does_not_read_change_nothing(tmp_path: Path) -> None:
    unread = {"head_dim": 72, "rope_theta": 5e5, "rope_scaling": {"type": "linear"}}
    assert imported(tmp_path, KIMI | unread) == imported(tmp_path, KIMI)


def test_defaults_are_those_of_the_class(tmp_path: Path) -> None:
    silent: Config = {"model_type": "kimi_linear", "vocab_size": 163_840}
    saved = json.loads(AutoConfig.for_model(**silent).to_json_string())
    found = imported(tmp_path, silent)
    assert found == imported(tmp_path, saved)
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
        (
            {"linear_attn_config": KIMI["linear_attn_config"] | {"kda_layers": [1, 2]}},
            "'kda_layers': [1, 2]",
        ),
    ],
)
def test_what_recipes_cannot_express_is_refused(
    change: Config, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as refusal:
        imported(tmp_path, KIMI | change)
    assert words in str(refusal.value)


def mixer_with(**changes: Any) -> Section:
    section = kimi_linear()
    return section | {"mixers": {"delta": section["mixers"]["delta"] | changes}}


ROTARY = {"_target_": "components.model.positions.Rotary", "_partial_": True, "base": 1e4}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (mixer_with(key_dim=8), "have one width"),
        (mixer_with(gate_rank=8), "have one width"),
        (mixer_with(norm=RMS | {"eps": 1e-6}), "the model's norm"),
        (mixer_with(norm_placement="after"), "the model's norm"),
        (kimi_linear() | {"positions": ROTARY}, "model.positions._target_ (it must be Posit"),
        (kimi_linear() | {"tied_embeddings": True}, "model.tied_embeddings (it must be fal"),
    ],
)
def test_a_feature_that_the_class_lacks_is_named(section: Section, words: str) -> None:
    with pytest.raises(RecipeError, match="no Hugging Face class") as refusal:
        choose_family(read_decoder(section))
    assert words in refusal.value.problem


def test_a_mixer_with_the_placement_of_the_class_is_exported() -> None:
    family = choose_family(read_decoder(mixer_with(norm_placement="before")))
    assert family.model_type == "kimi_linear"
