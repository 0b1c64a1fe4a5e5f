"""Small model sections like those of hybrid models, of awkward shapes."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NORM: dict[str, Any] = {
    "_target_": "components.model.norms.Norm",
    "_partial_": True,
    "eps": 1e-5,
    "center": False,
    "weight": True,
    "bias": False,
}


def olmo_hybrid() -> dict[str, Any]:
    """Three layers of four have gated delta nets, in an order without an interval."""
    return {
        "_target_": "components.model.decoder.Decoder",
        "dim": 48,
        "num_layers": 4,
        "vocab_size": 303,
        "padded_vocab_size": 320,
        "tied_embeddings": False,
        "embedding_norm": None,
        "dropout": 0.0,
        "positions": {"_target_": "components.model.positions.Positions", "_partial_": True},
        "attention": {
            "_target_": "components.model.attention.Attention",
            "_partial_": True,
            "num_heads": 6,
            "num_kv_heads": 3,
            "head_dim": 8,
            "bias": False,
            "qk_norm": NORM,
            "layer_scaling": False,
            "dropout": 0.0,
            "backends": ["flash", "efficient", "overrideable", "flex"],
        },
        "mlp": {
            "_target_": "components.model.mlp.MLP",
            "_partial_": True,
            "ffn_dim": 77,
            "activation": "silu",
            "gated": True,
            "bias": False,
        },
        "norm": NORM,
        "norm_placement": "after",
        "initialization": {
            "_target_": "components.model.initialization.Normal",
            "std": 0.2,
            "residual": "plain",
            "padding_row": None,
        },
        "init_from": "none",
        "pattern": ["delta/mlp", "delta/mlp", "attention/mlp"],
        "mixers": {
            "delta": {
                "_target_": "components.model.mixers.gated_delta_net.GatedDeltaNet",
                "_partial_": True,
                "num_heads": 4,
                "num_key_heads": 2,
                "key_dim": 6,
                "value_dim": 10,
                "conv_size": 3,
                "norm": NORM,
                "negative_eigenvalues": True,
                "norm_placement": "before",
                "decay_range": [0.0, 16.0],
            }
        },
    }


def olmo_hybrid_rotated() -> dict[str, Any]:
    """The same with RoPE, as before the last stage of its training."""
    rotary = {"_target_": "components.model.positions.Rotary", "_partial_": True, "base": 5e5}
    return olmo_hybrid() | {"positions": rotary}


def qwen3_next() -> dict[str, Any]:
    """Two groups of three states each, gated heads of which some channels rotate, experts."""
    section = olmo_hybrid()
    rotary = {"_target_": "components.model.positions.Rotary", "_partial_": True, "base": 500.0}
    gated = {"head_dim": 10, "num_kv_heads": 2, "output_gate": True}
    delta = section["mixers"]["delta"] | {"num_heads": 6, "negative_eigenvalues": False}
    return section | {
        "num_layers": 5,
        "positions": rotary | {"rotary_fraction": 0.4},
        "attention": section["attention"] | gated | {"qk_norm_over": "each_head"},
        "mlp": {
            "_target_": "components.model.moe.Experts",
            "_partial_": True,
            "num_experts": 5,
            "top_k": 2,
            "ffn_dim": 20,
            "shared_ffn_dim": 28,
            "shared_gate": True,
            "activation": "silu",
            "gated": True,
            "renormalize": True,
            "routing": "learned",
            "auxiliary_loss": 0.0,
            "auxiliary_scope": "layer",
            "z_loss": 0.0,
            "path": "auto",
        },
        "norm_placement": "before",
        "pattern": ["delta/mlp", "attention/mlp", "delta/mlp"],
        "mixers": {"delta": _without(delta, "norm_placement", "decay_range")},
    }


def qwen3_next_slowed() -> dict[str, Any]:
    """With biases of attention, a state for each key, and tied ends."""
    section = qwen3_next() | {"tied_embeddings": True}
    section["attention"] |= {"bias": True}
    section["mixers"]["delta"] |= {"num_key_heads": 6}
    section["positions"] |= {
        "scaling": {
            "_target_": "components.model.rotary_scaling.YarnScaling",
            "factor": 4.0,
            "original_tokens": 12,
            "beta_fast": 1.0,
            "beta_slow": 0.03125,
        }
    }
    return section


def _without(section: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}


def nemotron_h() -> dict[str, Any]:
    """Seven layers of one part each; three groups of two heads, and many steps are bounded."""
    section = olmo_hybrid()
    return section | {
        "num_layers": 7,
        "attention": section["attention"] | {"head_dim": 10, "qk_norm": None},
        "mlp": section["mlp"] | {"activation": "relu_squared", "gated": False},
        "norm_placement": "before",
        "pattern": ["mamba", "mlp", "mamba", "attention", "mlp"],
        "mixers": {
            "mamba": {
                "_target_": "components.model.mixers.mamba2.Mamba2",
                "_partial_": True,
                "num_heads": 6,
                "num_key_heads": 3,
                "key_dim": 5,
                "value_dim": 7,
                "conv_size": 3,
                "conv_bias": True,
                "norm": NORM,
                "step_limits": [0.7, None],
                "step_range": [0.7, 0.9],
            }
        },
    }


def nemotron_h_with_mlp_biases() -> dict[str, Any]:
    """Without biases of convolutions and a least step."""
    section = nemotron_h()
    changes = {"conv_bias": False, "step_limits": [0.0, None], "step_range": [0.001, 0.1]}
    return section | {
        "num_layers": 3,
        "mlp": section["mlp"] | {"activation": "silu", "bias": True},
        "pattern": ["mlp", "attention", "mamba"],
        "mixers": {"mamba": section["mixers"]["mamba"] | changes},
    }


def granitemoehybrid() -> dict[str, Any]:
    """Experts, three groups of four heads, bounded steps, multipliers and no positions."""
    section = olmo_hybrid()
    mamba = nemotron_h()["mixers"]["mamba"]
    sizes = {"num_heads": 12, "value_dim": 8, "step_limits": [0.4, 1.1]}
    experts = _without(qwen3_next()["mlp"], "shared_gate")
    return section | {
        "num_layers": 5,
        "attention": section["attention"] | {"head_dim": 10, "qk_norm": None, "scale_dim": 41},
        "mlp": experts | {"auxiliary_scope": "model"},
        "norm_placement": "before",
        "parametrization": {
            "_target_": "components.model.parametrization.Multipliers",
            "_partial_": True,
            "embedding_multiplier": 3.0,
            "branch_multiplier": 0.22,
            "output_multiplier": 1 / 6,
        },
        "pattern": ["mamba/mlp", "mamba/mlp", "attention/mlp"],
        "mixers": {"mamba": _without(mamba | sizes, "step_range")},
    }


def granitemoehybrid_with_an_mlp() -> dict[str, Any]:
    """Rotated, tied, with biases of attention, without multipliers or bounds of steps."""
    section, rotary = granitemoehybrid(), olmo_hybrid_rotated()["positions"]
    mamba = section["mixers"]["mamba"] | {"conv_bias": False, "step_limits": [0.0, None]}
    return _without(section, "parametrization") | {
        "tied_embeddings": True,
        "positions": rotary,
        "attention": section["attention"] | {"scale_dim": None, "bias": True},
        "mlp": olmo_hybrid()["mlp"],
        "mixers": {"mamba": mamba},
    }


def granitemoehybrid_of_attention() -> dict[str, Any]:
    """No layer has a mixer."""
    section = granitemoehybrid_with_an_mlp() | granitemoehybrid_multipliers()
    return _without(section, "pattern", "mixers")


def granitemoehybrid_multipliers() -> dict[str, Any]:
    return {"parametrization": granitemoehybrid()["parametrization"]}


def kimi_linear() -> dict[str, Any]:
    """A dense layer with delta attention; experts in groups; heads of four widths."""
    section = olmo_hybrid()
    return section | {
        "norm_placement": "before",
        "attention": {
            "_target_": "components.model.latent_attention.LatentAttention",
            "_partial_": True,
            "num_heads": 6,
            "num_kv_heads": 6,
            "head_dim": 13,
            "rotary_dim": 5,
            "value_dim": 9,
            "query_rank": None,
            "key_value_rank": 11,
            "latent_norm": NORM | {"eps": 1e-6},
            "dropout": 0.0,
            "backends": ["flex"],
        },
        "dense_mlp": section["mlp"],
        "num_dense_layers": 1,
        "mlp": {
            "_target_": "components.model.moe.Experts",
            "_partial_": True,
            "num_experts": 6,
            "top_k": 2,
            "ffn_dim": 20,
            "shared_ffn_dim": 40,
            "activation": "silu",
            "gated": True,
            "renormalize": True,
            "scores": "sigmoid",
            "weight_scale": 2.446,
            "num_groups": 3,
            "top_groups": 2,
            "balance_rate": 0.001,
            "routing": "learned",
            "auxiliary_loss": 0.0,
            "auxiliary_scope": "layer",
            "z_loss": 0.0,
            "path": "auto",
        },
        "mixers": {
            "delta": {
                "_target_": "components.model.mixers.kimi_delta.KimiDelta",
                "_partial_": True,
                "num_heads": 5,
                "key_dim": 7,
                "value_dim": 7,
                "gate_rank": 7,
                "conv_size": 3,
                "norm": NORM,
            }
        },
    }


def kimi_linear_of_low_rank() -> dict[str, Any]:
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
