"""Published configurations of open models, counted to the unit."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from components.build import build_node
from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from tests.components.convert.base_section import (
    RMS,
    ROTARY,
    Section,
    base_section,
    experts,
    latent_attention,
    part,
)
from tests.components.convert.conftest import published

Config = dict[str, Any]
OLMO2 = published("olmo2_1b")
# allenai/OLMo configs/official-1124/OLMo2-7B-stage1.yaml, in the keys of the class.
SIZES: tuple[str, ...] = ("hidden_size", "intermediate_size", "num_hidden_layers")
SIZES += ("num_attention_heads", "num_key_value_heads")
OLMO2_7B = OLMO2 | dict(zip(SIZES, (4_096, 11_008, 32, 32, 32), strict=True))
OLMO2_13B = OLMO2 | dict(zip(SIZES, (5_120, 13_824, 40, 40, 40), strict=True))
OLMO2_32B = OLMO2 | dict(zip(SIZES, (5_120, 27_648, 64, 40, 8), strict=True))  # OLMo-core
SMOLLM3 = published("smollm3_3b")
QWEN3 = published("qwen3_8b")
OLMO3 = published("olmo3_7b")
OLMO3_FIRST = {key: value for key, value in OLMO3.items() if key != "rope_scaling"}
OLMO3_FIRST |= {"max_position_embeddings": 8_192, "vocab_size": 100_352}
OLMO3_32B = OLMO3 | {key: OLMO2_32B[key] for key in SIZES}
OLMO3_32B |= {"layer_types": 2 * OLMO3["layer_types"]}
OLMOE = published("olmoe_1b_7b")
MISTRAL = published("mistral_7b")
# The smallest of the same series (arXiv 2505.09388, table 1), with tied embeddings.
QWEN3_06B = QWEN3 | dict(zip(SIZES, (1_024, 3_072, 28, 16, 8), strict=True))
QWEN3_06B |= {"tie_word_embeddings": True}
APERTUS = published("apertus_8b")
# arXiv 2509.14233, table 1, in the same keys.
APERTUS_70B = APERTUS | dict(zip(SIZES, (8_192, 43_008, 80, 64, 8), strict=True))
QWEN3_MOE = published("qwen3_30b_a3b")
DEEPSEEK = published("deepseek_v3")
GPT_OSS = published("gpt_oss_20b")
GEMMA3 = published("gemma3_1b")
GEMMA3_27B = published("gemma3_27b")
# The text parts of the hub's files, in the same keys, as public copies have them.
GEMMA3_12B = GEMMA3_27B | dict(zip(SIZES, (3_840, 15_360, 48, 16, 8), strict=True))
GEMMA3_12B |= {"head_dim": 256, "query_pre_attn_scalar": 256}
GEMMA3_4B = GEMMA3_12B | dict(zip(SIZES, (2_560, 10_240, 34, 8, 4), strict=True))

# By hand from the shapes; cards and papers round them.
COUNTS: dict[str, tuple[Config, int]] = {
    "OLMo-2 1B": (OLMO2, 1_484_916_736),
    "OLMo-2 7B": (OLMO2_7B, 7_298_617_344),
    "OLMo-2 13B": (OLMO2_13B, 13_716_198_400),
    "OLMo-2 32B": (OLMO2_32B, 32_234_279_936),
    "OLMoE-1B-7B": (OLMOE, 6_919_161_856),
    "SmolLM3-3B": (SMOLLM3, 3_075_098_624),
    "Qwen3-0.6B": (QWEN3_06B, 596_049_920),
    "Qwen3-8B": (QWEN3, 8_190_735_360),
    "OLMo-3 7B, first stage": (OLMO3_FIRST, 7_298_617_344),
    "OLMo-3 7B": (OLMO3, 7_298_011_136),
    "OLMo-3 32B": (OLMO3_32B, 32_233_522_176),
    "Mistral 7B": (MISTRAL, 7_241_732_096),
    "Apertus 8B": (APERTUS, 8_053_338_176),
    "Apertus 70B": (APERTUS_70B, 70_599_864_480),
    "Qwen3-30B-A3B": (QWEN3_MOE, 30_532_122_624),
    "DeepSeek-V3": (DEEPSEEK, 671_026_404_352),
    "gpt-oss-20b": (GPT_OSS, 20_914_757_184),
    "Gemma 3 1B": (GEMMA3, 999_885_952),
    "Gemma 3 4B": (GEMMA3_4B, 3_880_263_168),
    "Gemma 3 12B": (GEMMA3_12B, 11_766_034_176),
    "Gemma 3 27B": (GEMMA3_27B, 27_009_346_304),
}
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
PARTS: dict[str, Section] = {  # what each series has apart from sizes
    "olmo2": {"norm_placement": "after", "qk_norm_over": "all_heads"},
    "olmoe": {"qk_norm_over": "all_heads"},
    "qwen3": {"qk_norm_over": "each_head"},
    "opensci": {"qk_norm_over": "each_head", "mlp": {"bias": True}},
    "apertus": {"qk_norm_over": "each_head", "mlp": {"activation": "xielu", "gated": False}},
    "qwen3_moe": {"qk_norm_over": "each_head"},
    "olmo3": {"norm_placement": "after", "qk_norm_over": "all_heads"},
    "gpt_oss": {
        "attention": {"sinks": True},
        "mlp": {"bias": True, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "linear_offset": 1.0},
    },
    "gemma3_text": {
        "norm_placement": "both",
        "qk_norm_over": "each_head",
        "mlp": {"activation": "gelu_tanh"},
        "embedding_scale": "sqrt_dim",
    },
}


def section_of(config: Config) -> Section:
    series = PARTS.get(config["model_type"], {})
    if is_gemma := config["model_type"] == "gemma3_text":
        config = GEMMA3 | config  # its files leave out what is the same in all sizes
    norm = RMS | {"eps": config["rms_norm_eps"]}
    mlp: Section = {"ffn_dim": config["intermediate_size"], **series.get("mlp", {})}
    attention = attention_of(config, norm if "qk_norm_over" in series else None)
    section = base_section(positions_of(config), norm, mlp=mlp, attention=attention)
    if "kv_lora_rank" in config:
        section["attention"] = latent_of(config, norm)
    if config.get("first_k_dense_replace"):
        section |= {"dense_mlp": section["mlp"]}
        section |= {"num_dense_layers": config["first_k_dense_replace"]}
    if "num_experts_per_tok" in config:
        section["mlp"] = experts_of(config)
    section |= {"dim": config["hidden_size"], "num_layers": config["num_hidden_layers"]}
    section |= dict.fromkeys(("vocab_size", "padded_vocab_size"), config["vocab_size"])
    section |= {"tied_embeddings": config.get("tie_word_embeddings", is_gemma)}
    placed = ("norm_placement", "embedding_scale")
    return section | {key: series[key] for key in placed if key in series}


def positions_of(config: Config) -> Section:
    positions = ROTARY | {"base": float(config["rope_theta"])}
    if every := config.get("no_rope_layer_interval"):
        positions |= part("positions.InterleavedRotary", skip_every=every)
    if scaling := config.get("rope_scaling"):
        positions["scaling"] = scaling_of(scaling)
        if config["model_type"] == "olmo3":
            positions["local_base"] = positions["base"]
    if base := config.get("rope_local_base_freq"):
        positions["local_base"] = float(base)
    return positions


def attention_of(config: Config, qk_norm: Section | None) -> Section:
    series = PARTS.get(config["model_type"], {})
    window = config.get("sliding_window")
    kinds = config.get("layer_types", ["sliding_attention" if window else "full_attention"])
    if config["model_type"] == "gemma3_text":
        kinds = 5 * ["sliding_attention"] + ["full_attention"]
    heads = config["num_attention_heads"]
    width = config.get("head_dim", config["hidden_size"] // heads)
    divisor = config.get("query_pre_attn_scalar", width)
    return {
        "num_heads": heads,
        "num_kv_heads": config["num_key_value_heads"],
        "head_dim": width,
        "scale_dim": None if divisor == width else divisor,
        "bias": config.get("attention_bias", False),
        "qk_norm": qk_norm,
        "qk_norm_over": series.get("qk_norm_over", "all_heads"),
        "windows": [window if kind == "sliding_attention" else "full" for kind in kinds],
        **series.get("attention", {}),
    }


def scaling_of(config: Config) -> Section:
    room = "components.model.rotary_scaling"
    if config["rope_type"] == "linear":
        return {"_target_": f"{room}.LinearScaling", "factor": config["factor"]}
    length = config["original_max_position_embeddings"]
    numbers = {"factor": config["factor"], "original_tokens": length}
    if config.get("rope_type") == "llama3":
        names = {"low_frequency_factor": "low_freq_factor"}
        names |= {"high_frequency_factor": "high_freq_factor"}
        kind = "Llama3Scaling"
    else:
        names = {key: key for key in ("beta_fast", "beta_slow", "truncate") if key in config}
        kind = "YarnScaling"
    return {"_target_": f"{room}.{kind}", **numbers} | {
        ours: config[theirs] for ours, theirs in names.items()
    }


def latent_of(config: Config, norm: Section) -> Section:
    rotary = config["qk_rope_head_dim"]
    return latent_attention(
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["qk_nope_head_dim"] + rotary,
        rotary_dim=rotary,
        value_dim=config["v_head_dim"],
        query_rank=config["q_lora_rank"],
        key_value_rank=config["kv_lora_rank"],
        latent_norm=norm,
    )


def experts_of(config: Config) -> Section:
    return experts(
        num_experts=next(config[name] for name in EXPERTS if name in config),
        top_k=config["num_experts_per_tok"],
        ffn_dim=config.get("moe_intermediate_size") or config["intermediate_size"],
        renormalize=config.get("norm_topk_prob", True),
        auxiliary_loss=config.get("router_aux_loss_coef", 0.0),
        **PARTS.get(config["model_type"], {}).get("mlp", {}),
        **(deepseek_of(config) if "n_shared_experts" in config else {}),
    )


def deepseek_of(config: Config) -> Section:
    return {
        "scores": "sigmoid",
        "weight_scale": config["routed_scaling_factor"],
        "num_groups": config["n_group"],
        "top_groups": config["topk_group"],
        "shared_ffn_dim": config["n_shared_experts"] * config["moe_intermediate_size"],
        "balance_rate": 0.001,
    }


def theirs_of(config: Config) -> Any:
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype"))
    kind = {key: value for key, value in deepcopy(config).items() if key != "model_type"} | ids
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config["model_type"], **kind, attn_implementation="eager")
    )


@pytest.mark.parametrize("model", COUNTS)
def test_parameters_are_counted_to_the_unit(model: str) -> None:
    config, published = COUNTS[model]
    section = section_of(config)
    with torch.device("meta"):
        ours, theirs = build_node(section, "model"), theirs_of(config)
    assert sum(parameter.numel() for parameter in ours.parameters()) == published
    arithmetic = read_decoder(section).total_parameters
    assert theirs.num_parameters() == published == arithmetic


@pytest.mark.parametrize(
    ("config", "active", "idle"),
    # Published: 1.3 B, 3.3 B and 37 B. The idle rest are experts that the token does not use.
    [
        (OLMOE, 1_282_017_280, 16 * 56 * 3 * 2_048 * 1_024),
        (QWEN3_MOE, 3_353_032_704, 48 * 120 * 3 * 2_048 * 768),
        (DEEPSEEK, 37_552_282_624, 58 * 248 * 3 * 7_168 * 2_048),
    ],
    ids=["olmoe", "qwen3", "deepseek"],
)
def test_active_parameters_are_counted(config, active, idle):
    shape = read_decoder(section_of(config))
    assert shape.active_parameters == active
    assert shape.total_parameters - idle == active


@pytest.mark.parametrize("model", COUNTS)
def test_a_published_configuration_describes_our_model(model: str) -> None:
    config, _ = COUNTS[model]
    features = read_decoder(section_of(config))
    family = choose_family(features)
    assert family.model_type == config["model_type"]
    assert family.read_hf_config(config) == family.write_hf_config(features)


def test_layers_without_rotation_are_read_from_their_interval() -> None:
    config = {key: value for key, value in SMOLLM3.items() if key != "no_rope_layers"}
    features = read_decoder(section_of(SMOLLM3))
    family = choose_family(features)
    assert family.read_hf_config(config) == family.write_hf_config(features)
    longer = SMOLLM3 | {"no_rope_layers": [1, 1, 1, 0] * 20}
    assert family.read_hf_config(longer) == family.write_hf_config(features)
    other = SMOLLM3 | {"no_rope_layers": [1, 0, 1, 1] * 9}
    assert family.read_hf_config(other) != family.write_hf_config(features)


def test_windows_and_rotations_of_olmo3_are_read_in_every_spelling() -> None:
    features = read_decoder(section_of(OLMO3))
    family = choose_family(features)
    ours = family.write_hf_config(features)
    silent = {key: value for key, value in OLMO3.items() if key != "layer_types"}
    assert family.read_hf_config(silent) == ours
    newer = {key: value for key, value in OLMO3.items() if not key.startswith("rope")}
    both = dict(ours["rope_parameters"])
    assert both["sliding_attention"] == {"rope_type": "default", "rope_theta": 500_000}
    assert both["full_attention"]["rope_type"] == "yarn"
    assert family.read_hf_config(newer | {"rope_parameters": both}) == ours
    slowed = dict.fromkeys(both, both["full_attention"])
    assert family.read_hf_config(newer | {"rope_parameters": slowed}) != ours
    faster = {"rope_type": "default", "rope_theta": 10_000.0}
    other = {"rope_parameters": both | {"sliding_attention": faster}}
    assert family.read_hf_config(newer | other) != ours
    assert family.read_hf_config(OLMO3 | {"layer_types": ["full_attention"] * 32}) != ours
    hot = {"rope_scaling": OLMO3["rope_scaling"] | {"attention_factor": 1.3}}
    assert family.read_hf_config(OLMO3 | hot) != ours


def test_a_missing_scaling_is_the_default_and_null_is_none() -> None:
    kept = {key: value for key, value in APERTUS.items() if key != "rope_scaling"}
    slowed, plain = (section_of(config) for config in (APERTUS, kept))
    family = choose_family(read_decoder(slowed))
    assert family.read_hf_config(kept) == family.write_hf_config(read_decoder(slowed))
    as_written = family.write_hf_config(read_decoder(plain))
    assert family.read_hf_config(kept | {"rope_scaling": None}) == as_written
    theirs = AutoConfig.for_model("apertus", **deepcopy(as_written))
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 12_000_000}
