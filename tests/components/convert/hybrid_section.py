"""Small model sections like those of hybrid models, of awkward shapes."""

from typing import Any

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


HYBRIDS = (olmo_hybrid, olmo_hybrid_rotated, qwen3_next, qwen3_next_slowed)
