"""An exported configuration can be imported; unsupported keys and values are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from command.composition.conf_groups import compose_defaults
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import ExpertsSpec
from components.config.part_nodes import read_decoder
from components.convert.config_json import check_same, read_config
from components.convert.family import FAMILIES, choose_family
from components.convert.folder import make_config
from components.convert.hf_family import SAME_NORM
from components.errors import RecipeError
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import PUBLISHED, llama, published

LLAMA, SMOLLM3, GEMMA3 = "llama3_2_1b", "smollm3_3b", "gemma3_1b"
Config = dict[str, Any]
DEFAULT = read_decoder(llama())


def put(folder: Path, config: Config) -> Path:
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def overlaid(below: Section, above: Section) -> Section:
    return {**below} | {
        key: overlaid(below.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in above.items()
    }


def resolved(section: Any, norm: Section) -> Any:
    if section == SAME_NORM:
        return norm
    if not isinstance(section, dict):
        return section
    return {key: resolved(value, norm) for key, value in section.items()}


def imported(folder: Path, config: Config, rows: int | None = None) -> Section:
    """Return the model section of a ``config.json``, checked against the file."""
    found = read_config(put(folder, config))
    whole = overlaid(compose_defaults()["model"], found.section)
    whole |= {"vocab_size": found.vocab_size, "padded_vocab_size": rows or found.vocab_size}
    whole = dict(resolved(whole, whole["norm"]))
    check_same(found, whole)
    return whole


def computed(spec: DecoderSpec) -> DecoderSpec:
    """Reset initialization and everything else that no weight or logit depends on."""
    plain: dict[str, Any] = {"init_from": "none", "initialization": DEFAULT.initialization}
    plain["attention"] = spec.attention.model_copy(
        update={"backends": (), "layer_scaling": False}
    )
    if isinstance(spec.mlp, ExpertsSpec):
        changes = {"path": "auto", "auxiliary_scope": "layer", "z_loss": 0.0}
        plain["mlp"] = spec.mlp.model_copy(update=changes)
    return spec.model_copy(update=plain)


def test_an_exported_configuration_is_imported_again(section: Section, tmp_path: Path) -> None:
    features = read_decoder(section)
    family = choose_family(features)
    rows = features.vocab_size
    config = make_config(
        family, features, rows=rows, context_tokens=24, ids={"eos_token_id": 0}, dtype="float32"
    )
    found = read_config(put(tmp_path, config))
    assert (found.family, found.vocab_size) == (family, rows)
    assert found.context_tokens in {24, 29, None}  # 29: learned positions; None: ALiBi
    again = read_decoder(imported(tmp_path, config, features.padded_vocab_size))
    assert computed(again) == computed(features)


def test_a_configuration_that_another_family_would_export_is_refused(tmp_path: Path) -> None:
    types = {"layer_types": ["full_attention"] * 32}
    config = published("olmo3_7b") | {"rope_scaling": None} | types
    with pytest.raises(RecipeError, match="Olmo3ForCausalLM would be exported as Olmo2ForC"):
        imported(tmp_path, config)


def test_every_family_has_a_published_configuration() -> None:
    known = {published(file.stem)["model_type"] for file in PUBLISHED.glob("*.json")}
    assert known == {family.model_type for family in FAMILIES}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (LLAMA, {"model_type": "mamba"}, "model_type: unknown model family 'mamba'"),
        (LLAMA, {"model_type": 7}, "model_type: unknown model family 7"),
        (LLAMA, {"logit_scale": 0.5}, "logit_scale: 0.5: LlamaForCausalLM has no such key"),
        (LLAMA, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: ["),
        (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder: True: "),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4}"),
        (LLAMA, {"hidden_act": "relu"}, "hidden_act: unsupported 'relu'"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic"}}, "rope_type: unsupported 'dynamic'"),
        (
            LLAMA,
            {"rope_scaling": None, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: unsupported key (value 0.5)",
        ),
        (GEMMA3, {"rope_parameters": {"rope_theta": 9}}, "rope_parameters.rope_theta: unknown"),
        (GEMMA3, {"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0: "),
        (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention: True"),
        (GEMMA3, {"sliding_window_pattern": "6"}, "sliding_window_pattern: '6' is not a posit"),
        (GEMMA3, {"model_type": "gemma3"}, "gemma3_text"),
        ("gpt2", {"embd_pdrop": 0.2}, "embd_pdrop: 0.2 differs from resid_pdrop"),
        (LLAMA, {"hidden_size": "2048"}, "hidden_size: '2048' is not an integer from 1 on"),
        (LLAMA, {"num_attention_heads": 0}, "num_attention_heads: 0 is not an integer"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is not true or false"),
        (LLAMA, {"rms_norm_eps": "small"}, "rms_norm_eps: 'small' is not a number"),
        (LLAMA, {"rms_norm_eps": float("inf")}, "rms_norm_eps: inf is not a number"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not a number"),
        (LLAMA, {"hidden_act": ["silu"]}, "hidden_act: ['silu'] is not a word"),
        (LLAMA, {"head_dim": [64]}, "head_dim: [64] is not a positive number"),
        (LLAMA, {"rope_scaling": {"factor": "2"}}, "rope_scaling: {'factor': '2'} is not a m"),
        (LLAMA, {"rope_scaling": 3}, "rope_scaling: 3 is not a mapping"),
        (SMOLLM3, {"no_rope_layers": "all"}, "no_rope_layers: 'all' is not a list"),
        (LLAMA, {"vocab_size": None}, "vocab_size: None is not an integer"),
        ("bloom_560m", {"n_embed": {}}, "n_embed: {} is not an integer"),
    ],
)
def test_an_unsupported_value_is_refused_by_its_key(name, change, words, tmp_path):
    with pytest.raises(RecipeError) as refusal:
        read_config(put(tmp_path, published(name) | change))
    assert words in str(refusal.value)
    assert str(tmp_path / "config.json") in str(refusal.value)


@pytest.mark.parametrize(
    "kind", ["qwen2", "mixtral", "mistral3", "phi3", "llama4", "gemma3n", "deepseek_v2", "lama"]
)
def test_an_unknown_family_gets_a_list_of_families(kind: str, tmp_path) -> None:
    with pytest.raises(RecipeError) as refusal:
        read_config(put(tmp_path, published(LLAMA) | {"model_type": kind}))
    families = sorted(family.model_type for family in FAMILIES)
    assert refusal.value.remedy == f"known: {', '.join(families)}"


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("Qwen_3", "qwen3"),
        ("LLaMA", "llama"),
        ("deepseek-v3", "deepseek_v3"),
        ("GPT-2", "gpt2"),
    ],
)
def test_a_misspelled_family_gets_a_suggestion(kind, meant, tmp_path):
    with pytest.raises(RecipeError) as refusal:
        read_config(put(tmp_path, published(LLAMA) | {"model_type": kind}))
    assert refusal.value.remedy == f"did you mean {meant}?"
