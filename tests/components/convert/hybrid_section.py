"""Small model sections like those of OLMo-Hybrid and Nemotron-H, of awkward shapes."""

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


HYBRID = (olmo_hybrid, olmo_hybrid_rotated, nemotron_h, nemotron_h_with_mlp_biases)
