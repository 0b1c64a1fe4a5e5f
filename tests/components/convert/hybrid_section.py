"""Small sections of hybrid models, with awkward shapes."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tests.components.convert.base_section import (
    RMS,
    ROTARY,
    YARN,
    Section,
    base_section,
    experts,
    latent_attention,
    part,
    scale_rotation,
)

SIGMOID = {"scores": "sigmoid", "num_groups": 3, "top_groups": 2}
SIGMOID |= {"shared_ffn_dim": 40, "balance_rate": 0.001}
BEFORE = {"norm_placement": "before"}


def olmo_hybrid() -> Section:
    """Three of four layers have gated delta nets, in an order without an interval."""
    heads = {"num_kv_heads": 3, "qk_norm": RMS}
    delta = part("mixers.gated_delta_net.GatedDeltaNet", norm=RMS, decay_range=[0.0, 16.0])
    delta |= {"num_heads": 4, "num_key_heads": 2, "key_dim": 6, "value_dim": 10, "conv_size": 3}
    delta |= {"negative_eigenvalues": True, "norm_placement": "before"}
    return base_section(part("positions.Positions"), RMS, attention=heads) | {
        "num_layers": 4,
        "tied_embeddings": False,
        "norm_placement": "after",
        "pattern": ["delta/mlp", "delta/mlp", "attention/mlp"],
        "mixers": {"delta": delta},
    }


def olmo_hybrid_rotated() -> Section:
    """The same with RoPE, as before the last stage of its training."""
    return olmo_hybrid() | {"positions": ROTARY | {"base": 5e5}}


def qwen3_next() -> Section:
    """Two groups of three states, gated and partly rotated heads, and experts."""
    section = olmo_hybrid() | BEFORE
    gated = {"head_dim": 10, "num_kv_heads": 2, "output_gate": True}
    delta = section["mixers"]["delta"] | {"num_heads": 6, "negative_eigenvalues": False}
    return section | {
        "num_layers": 5,
        "positions": ROTARY | {"rotary_fraction": 0.4},
        "attention": section["attention"] | gated | {"qk_norm_over": "each_head"},
        "mlp": experts(shared_ffn_dim=28, shared_gate=True, renormalize=True),
        "pattern": ["delta/mlp", "attention/mlp", "delta/mlp"],
        "mixers": {"delta": _without(delta, "norm_placement", "decay_range")},
    }


def qwen3_next_slowed() -> Section:
    """With attention biases, a key for each state, and tied embeddings."""
    section = qwen3_next() | {"tied_embeddings": True}
    section["attention"] |= {"bias": True}
    section["mixers"]["delta"] |= {"num_key_heads": 6}
    return scale_rotation(section, "YarnScaling", **YARN)


def _without(section: Section, *keys: str) -> Section:
    return {key: value for key, value in section.items() if key not in keys}


def nemotron_h() -> Section:
    """Seven layers of one part each; three groups of two heads, and many bounded steps."""
    section = olmo_hybrid() | BEFORE
    mamba = part("mixers.mamba2.Mamba2", num_heads=6, num_key_heads=3, key_dim=5, value_dim=7)
    mamba |= {"conv_size": 3, "conv_bias": True, "norm": RMS}
    mamba |= {"step_limits": [0.7, None], "step_range": [0.7, 0.9]}
    return section | {
        "num_layers": 7,
        "attention": section["attention"] | {"head_dim": 10, "qk_norm": None},
        "mlp": section["mlp"] | {"activation": "relu_squared", "gated": False},
        "pattern": ["mamba", "mlp", "mamba", "attention", "mlp"],
        "mixers": {"mamba": mamba},
    }


def nemotron_h_with_mlp_biases() -> Section:
    """Without convolution biases and a least step."""
    section = nemotron_h()
    changes = {"conv_bias": False, "step_limits": [0.0, None], "step_range": [0.001, 0.1]}
    return section | {
        "num_layers": 3,
        "mlp": section["mlp"] | {"activation": "silu", "bias": True},
        "pattern": ["mlp", "attention", "mamba"],
        "mixers": {"mamba": section["mixers"]["mamba"] | changes},
    }


def granitemoehybrid() -> Section:
    """Experts, three groups of four heads, bounded steps, multipliers and no positions."""
    section = olmo_hybrid() | BEFORE
    mamba = nemotron_h()["mixers"]["mamba"]
    sizes = {"num_heads": 12, "value_dim": 8, "step_limits": [0.4, 1.1]}
    shared = _without(qwen3_next()["mlp"], "shared_gate") | {"auxiliary_scope": "model"}
    multipliers = {"embedding_multiplier": 3.0, "branch_multiplier": 0.22}
    multipliers |= {"output_multiplier": 1 / 6}
    return section | {
        "num_layers": 5,
        "attention": section["attention"] | {"head_dim": 10, "qk_norm": None, "scale_dim": 41},
        "mlp": shared,
        "parametrization": part("parametrization.Multipliers", **multipliers),
        "pattern": ["mamba/mlp", "mamba/mlp", "attention/mlp"],
        "mixers": {"mamba": _without(mamba | sizes, "step_range")},
    }


def granitemoehybrid_with_an_mlp() -> Section:
    """With RoPE, tied embeddings and attention biases; no multipliers or bounds of steps."""
    section, rotary = granitemoehybrid(), olmo_hybrid_rotated()["positions"]
    mamba = section["mixers"]["mamba"] | {"conv_bias": False, "step_limits": [0.0, None]}
    return _without(section, "parametrization") | {
        "tied_embeddings": True,
        "positions": rotary,
        "attention": section["attention"] | {"scale_dim": None, "bias": True},
        "mlp": olmo_hybrid()["mlp"],
        "mixers": {"mamba": mamba},
    }


def granitemoehybrid_of_attention() -> Section:
    """No layer has a mixer."""
    section = granitemoehybrid_with_an_mlp()
    multipliers = {"parametrization": granitemoehybrid()["parametrization"]}
    return _without(section, "pattern", "mixers") | multipliers


def kimi_linear() -> Section:
    """A dense layer with delta attention; experts in groups; heads of four widths."""
    section = olmo_hybrid() | BEFORE
    delta = part("mixers.kimi_delta.KimiDelta", num_heads=5, key_dim=7, value_dim=7)
    return section | {
        "attention": latent_attention(
            head_dim=13, rotary_dim=5, value_dim=9, query_rank=None, key_value_rank=11
        ),
        "dense_mlp": section["mlp"],
        "num_dense_layers": 1,
        "mlp": experts(num_experts=6, renormalize=True, **SIGMOID, weight_scale=2.446),
        "mixers": {"delta": delta | {"gate_rank": 7, "conv_size": 3, "norm": RMS}},
    }


def kimi_linear_of_low_rank() -> Section:
    """Queries of low rank, dense layers of both kinds, and experts without groups."""
    section = kimi_linear()
    section["attention"] |= {"query_rank": 8}
    section["mlp"] |= {"num_groups": 1, "top_groups": 1, "renormalize": False}
    return section | {"pattern": ["attention/mlp", "delta/mlp"], "num_dense_layers": 2}


HYBRIDS = (
    *(olmo_hybrid, olmo_hybrid_rotated, nemotron_h, nemotron_h_with_mlp_biases),
    *(kimi_linear, kimi_linear_of_low_rank, qwen3_next, qwen3_next_slowed),
    *(granitemoehybrid, granitemoehybrid_with_an_mlp, granitemoehybrid_of_attention),
)

# The published names of Kimi Linear's and Granite's tensors, and those in memory.
_NAMES = {
    r"block_sparse_moe(?=\.(gate|experts|shared_experts)\.)": "mlp",
    r"(?<=\.)w1(?=\.)": "gate_proj",
    r"(?<=\.)w3(?=\.)": "up_proj",
    r"(?<=\.)w2(?=\.)": "down_proj",
    r"self_attn\.(?=f_[ab]_proj|A_log|dt_bias)": "self_attn.forget_gate.",
    r"block_sparse_moe\.input_linear\.weight": "block_sparse_moe.experts.gate_up_proj",
    r"block_sparse_moe\.output_linear\.weight": "block_sparse_moe.experts.down_proj",
    r"block_sparse_moe\.router\.layer": "block_sparse_moe.router",
}


def rename_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors as their class has them in memory, if it differs from the folder's."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for theirs, own in _NAMES.items():
            name = re.sub(theirs, own, name)
        found[name] = tensor
    for name in [name for name in found if name.endswith("q_conv1d.weight")]:
        parts = [found.pop(name.replace("q_conv", f"{part}_conv")) for part in "qkv"]
        found[name.replace("q_conv", "conv")] = torch.cat(parts)
    return found
