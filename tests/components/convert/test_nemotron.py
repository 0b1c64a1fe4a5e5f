"""Nemotron-H in the spelling of its earlier folders, and what its class has but we refuse."""

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, NemotronHConfig

from command.composition.conf_groups import compose_defaults
from components.config.model_spec.mixers import Mamba2Spec
from components.config.part_nodes import read_decoder
from components.convert.config_json import check_same, read_config
from components.convert.hf_shards import SINGLE
from components.errors import RecipeError
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import Export, random_model
from tests.components.convert.hybrid_section import nemotron_h
from tests.components.convert.test_config_json import Config, overlaid, put, resolved
from tests.components.convert.test_reading import assert_same_bits, read

LETTERS = "M-M-M*-M-"
OF_LETTERS: Any = {"hybrid_override_pattern": LETTERS}


def earlier() -> Config:
    """The class's defaults, with a letter for each layer and keys that it no longer reads."""
    config: Config = NemotronHConfig(**OF_LETTERS).to_diff_dict()
    del config["layers_block_type"]
    config |= {"hybrid_override_pattern": LETTERS, "num_hidden_layers": len(LETTERS)}
    config |= {"attention_head_dim": 128, "rms_norm_eps": 1e-5}
    return config | {"time_step_limit": [0.0, float("inf")]}


def imported(folder: Path, config: Config) -> Section:
    found = read_config(put(folder, config))
    rows = {"vocab_size": found.vocab_size, "padded_vocab_size": found.vocab_size}
    whole = overlaid(compose_defaults()["model"], found.section) | rows
    whole = resolved(whole, whole["norm"])
    check_same(found, whole)
    return whole


def test_an_earlier_configuration_with_letters_has_the_parameters_of_the_class(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("types", [["mamba", "mlp"], ["linear_attention", "mlp"]])
def test_both_names_of_layers_are_understood(types: list[str], tmp_path: Path) -> None:
    section = imported(tmp_path, earlier() | {"layers_block_type": 2 * types})
    assert section["pattern"] == ["mamba", "mlp"]
    assert section["num_layers"] == 4


def test_the_default_has_a_layer_of_experts_and_is_refused(tmp_path: Path) -> None:
    config = {key: value for key, value in earlier().items() if "pattern" not in key}
    with pytest.raises(RecipeError, match="layers_block_type: unsupported 'moe'"):
        read_config(put(tmp_path, config))


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
def test_what_no_recipe_says_is_refused(change: Config, words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refusal:
        imported(tmp_path, earlier() | change)
    assert words in str(refusal.value)


def test_the_names_of_earlier_folders_are_understood(export: Export) -> None:
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
