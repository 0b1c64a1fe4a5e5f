"""Granite 4.0 and Nemotron-H: spellings of their folders, models with muP, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GraniteMoeHybridConfig,
    NemotronHConfig,
)

from components.config.model_spec.mixers import Mamba2Spec
from components.config.model_spec.parametrization import ForwardFactors
from components.config.part_nodes import read_decoder
from components.convert.config_json import read_config
from components.convert.family import choose_family
from components.convert.folder import make_config
from components.convert.hf_shards import SINGLE
from components.convert.llama import LLAMA
from components.errors import RecipeError
from tests.components.convert.base_section import part
from tests.components.convert.conftest import Export, llama, published, random_model
from tests.components.convert.hybrid_section import granitemoehybrid, nemotron_h
from tests.components.convert.test_config_json import Config, imported, put
from tests.components.convert.test_parity import LOGITS_TOLERANCE, distance, load, tokens
from tests.components.convert.test_reading import assert_same_bits, read

DENSE, HYBRID = published("granite_4_0_micro"), published("granite_4_0_h_micro")
DENSE_PARAMETERS = 3_402_836_480  # "3B", counted in the published weights
FACTORS = {"residual_multiplier": "branch_multiplier", "logits_scaling": "output_multiplier"}
FACTORS |= {"embedding_multiplier": "embedding_multiplier"}


@pytest.mark.parametrize("config", [DENSE, HYBRID], ids=["attention", "hybrid"])
def test_published_parameters_are_counted_to_the_unit(config: Config, tmp_path: Path) -> None:
    features = read_decoder(imported(tmp_path, config))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert features.total_parameters == theirs.num_parameters()
    assert (features.total_parameters == DENSE_PARAMETERS) is (config is DENSE)


def test_published_keys_equal_the_keys_of_the_model(tmp_path: Path) -> None:
    features = read_decoder(imported(tmp_path, HYBRID))
    kinds = [features.layer_types[features.kind_of(n).text] for n in range(40)]
    assert [n for n, kind in enumerate(kinds) if kind.has_attention] == [5, 15, 25, 35]
    mixer = features.mixers["mamba"]
    assert isinstance(mixer, Mamba2Spec)
    assert (mixer.num_heads, mixer.num_key_heads, mixer.key_dim) == (64, 1, 128)
    assert (mixer.value_dim, mixer.conv_size, mixer.conv_bias) == (64, 4, True)
    assert mixer.step_limits == (0.0, None)
    assert features.factors == ForwardFactors(12.0, 0.22, 1 / 8)
    assert features.attention.scale_dim == 64**2
    assert features.positions.class_name == "Positions"
    dense = read_decoder(imported(tmp_path, DENSE))
    assert (dense.pattern, dict(dense.mixers)) == (None, {})
    assert dense.positions.base == 10_000


def test_a_configuration_saved_by_transformers_is_read(tmp_path: Path) -> None:
    sizes: Config = {"hidden_size": 96, "mamba_n_heads": 6, "mamba_n_groups": 3}
    sizes |= {"layer_types": None}
    GraniteMoeHybridConfig(num_hidden_layers=2, **sizes).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert saved["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    section = imported(tmp_path, saved)
    assert section["pattern"] == ["mamba/mlp"]
    assert section["mixers"]["mamba"]["value_dim"] == 2 * 96 // 6
    assert "parametrization" not in section
    assert section["attention"]["scale_dim"] == 1
    for other in (
        {"time_step_limit": [0, float("inf")]},
        {"mamba_d_head": "auto"},
        {"layer_types": None, "layers_block_type": ["mamba", "mamba"]},
    ):
        assert imported(tmp_path, saved | other) == section
    least = {"model_type": "granitemoehybrid", "vocab_size": saved["vocab_size"], **sizes}
    assert imported(tmp_path, least | {"num_hidden_layers": 2}) == section


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["mamba", "moe"] * 20}, "layer_types: unsupported 'moe'"),
        ({"num_hidden_layers": 39}, "layer_types: "),
        ({"mamba_expand": 3}, "mamba_expand: 3, but recipes support only 2"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias: True: Granite"),
        ({"mamba_n_groups": "one"}, "mamba_n_groups: 'one' is not an integer"),
        ({"mamba_d_head": "wide"}, "model.mixers.mamba.value_dim"),
        ({"time_step_limit": None}, "time_step_limit: None is not a pair of numbers"),
        ({"time_step_limit": [0.1]}, r"time_step_limit: \[0.1\] is not a pair"),
        ({"time_step_limit": ["0", 1]}, r"time_step_limit: \['0', 1\] is not a pair"),
        ({"normalization_function": "layernorm"}, "normalization_function: 'layernorm'"),
        ({"hidden_act": "gelu"}, "hidden_act: unsupported 'gelu'"),
        ({"num_local_experts": None}, "num_local_experts: None is not an integer"),
        ({"attention_multiplier": 0.3}, "attention_multiplier: 0.3, but recipes support only"),
        ({"attention_multiplier": 2.0}, "attention_multiplier: 2.0, but recipes support on"),
        ({"logits_scaling": 0}, "logits_scaling: 0 is not a positive number"),
        ({"residual_multiplier": -0.2}, "residual_multiplier: -0.2 is not a positive number"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 2}}, "scaling.mscale"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5: Granite"),
    ],
)
def test_unsupported_values_of_granite_are_refused(change, words, tmp_path):
    with pytest.raises(RecipeError, match=words):
        imported(tmp_path, HYBRID | change)


@pytest.mark.parametrize(
    "parametrization",
    [
        part("parametrization.MuP", base_dim=8, embedding_multiplier=3.0),
        part("parametrization.CompleteP", base_dim=36, base_layers=1),
    ],
)
def test_factors_of_a_parametrization_are_exported(parametrization, export, tmp_path):
    section = llama() | {"parametrization": parametrization}
    features = read_decoder(section)
    model = random_model(section)
    folder = export(model, section)
    theirs = load(folder)
    assert theirs.config.model_type == "granitemoehybrid"
    expected = model(tokens())[..., : section["vocab_size"]]
    assert distance(theirs(tokens()).logits, expected) < LOGITS_TOLERANCE
    assert_same_bits(read(folder, section), model, rows=section["vocab_size"])
    config = json.loads((folder / "config.json").read_text("utf-8"))
    again = read_decoder(imported(tmp_path, config))
    assert again.factors == pytest.approx(features.factors, rel=1e-14)


def test_weights_of_a_model_with_other_multipliers_are_refused(export: Export) -> None:
    section = granitemoehybrid()
    folder = export(random_model(section), section)
    for key, name in FACTORS.items():
        factors = section["parametrization"] | {name: 0.5}
        with pytest.raises(RecipeError, match=key):
            read(folder, section | {"parametrization": factors})


def test_a_model_without_multipliers_keeps_its_class():
    plain = llama() | {"parametrization": part("parametrization.Multipliers")}
    assert choose_family(read_decoder(plain)) is LLAMA
    section = llama() | {"dim": 42, "parametrization": granitemoehybrid()["parametrization"]}
    features = read_decoder(section)
    family = choose_family(features)
    config = make_config(family, features, rows=300, context_tokens=24, ids={}, dtype="float32")
    GraniteMoeHybridConfig(**config).validate_architecture()


LETTERS = "M-M-M*-M-"
OF_LETTERS: Any = {"hybrid_override_pattern": LETTERS}


def earlier() -> Config:
    """The class's defaults, with a letter for each layer and keys that it no longer reads."""
    config: Config = NemotronHConfig(**OF_LETTERS).to_diff_dict()
    del config["layers_block_type"]
    config |= {"hybrid_override_pattern": LETTERS, "num_hidden_layers": len(LETTERS)}
    config |= {"attention_head_dim": 128, "rms_norm_eps": 1e-5}
    return config | {"time_step_limit": [0.0, float("inf")]}


def test_an_older_configuration_of_letters_is_read(tmp_path):
    features = read_decoder(imported(tmp_path, earlier()))
    parts = {"M": "mamba", "-": "mlp", "*": "attention"}
    kinds = [features.kind_of(layer).text for layer in range(features.num_layers)]
    assert kinds == [parts[letter] for letter in LETTERS]
    mixer = features.mixers["mamba"]
    assert isinstance(mixer, Mamba2Spec)
    assert (mixer.num_heads, mixer.num_key_heads, mixer.key_dim) == (128, 8, 128)
    assert (mixer.value_dim, mixer.conv_size, mixer.conv_bias) == (64, 4, True)
    assert mixer.step_limits == (0.001, None)
    assert mixer.step_range == (0.001, 0.1)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(NemotronHConfig(**OF_LETTERS))
    assert features.total_parameters == theirs.num_parameters()


def test_missing_keys_have_the_defaults_of_the_class(tmp_path: Path) -> None:
    config = earlier()
    few = ("model_type", "vocab_size", "hybrid_override_pattern")
    assert imported(tmp_path, {key: config[key] for key in few}) == imported(tmp_path, config)
    config = {key: value for key, value in earlier().items() if "pattern" not in key}
    with pytest.raises(RecipeError, match="layers_block_type: unsupported 'moe'"):
        read_config(put(tmp_path, config))


@pytest.mark.parametrize("types", [["mamba", "mlp"], ["linear_attention", "mlp"]])
def test_both_names_of_layers_are_read(types: list[str], tmp_path: Path) -> None:
    section = imported(tmp_path, earlier() | {"layers_block_type": 2 * types})
    assert section["pattern"] == ["mamba", "mlp"]
    assert section["num_layers"] == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hybrid_override_pattern": "MEM*"}, "layers_block_type: unsupported 'moe'"),
        ({"hybrid_override_pattern": "MX"}, "layers_block_type: unsupported 'X'"),
        ({"use_bias": True}, "use_bias: True: Nemotron"),
        ({"attention_bias": True}, "attention_bias: True: Nemotron"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act: 'gelu'"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers: 1: "),
        ({"mamba_n_groups": 4}, "mamba_n_groups: 4: "),
        ({"mlp_hidden_act": "relu"}, "mlp_hidden_act: unsupported 'relu'"),
        ({"attention_head_dim": 64}, "attention_head_dim: 64 differs from head_dim, 128"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps: 1e-06 differs from layer_norm_epsilon"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True, but recipes support onl"),
    ],
)
def test_unsupported_values_of_nemotron_are_refused(change, words, tmp_path):
    with pytest.raises(RecipeError) as refusal:
        imported(tmp_path, earlier() | change)
    assert words in str(refusal.value)


def test_tensor_names_of_older_folders_are_read(export: Export) -> None:
    section = nemotron_h()
    model = random_model(section)
    folder = export(model, section)
    tensors: dict[str, Any] = load_file(folder / SINGLE)
    for name in list(tensors):
        old = name.replace("model.", "backbone.", 1) if name.startswith("model.") else name
        tensors[old] = tensors.pop(name)
    assert "backbone.embeddings.weight" in tensors
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    letters = "".join("M-M*-"[layer % 5] for layer in range(section["num_layers"]))
    del config["layers_block_type"]
    put(folder, config | {"hybrid_override_pattern": letters, "time_step_limit": [0.0, 1e999]})
    assert_same_bits(read(folder, section), model, rows=section["vocab_size"])
