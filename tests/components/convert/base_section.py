"""Base of small model sections: sizes of awkward shapes, norms and scaled rotations."""

from typing import Any

Section = dict[str, Any]


def norm_node(*, center: bool, weight: bool, bias: bool) -> Section:
    norm = {"_target_": "components.model.norms.Norm", "_partial_": True, "eps": 1e-5}
    return norm | {"center": center, "weight": weight, "bias": bias}


def base_section(
    *, positions: Section, norm: Section, mlp: Section, attention: Section
) -> Section:
    """Rows beyond the pieces, and padded rows beyond those."""
    return {
        "_target_": "components.model.decoder.Decoder",
        "dim": 48,
        "num_layers": 2,
        "vocab_size": 303,
        "padded_vocab_size": 320,
        "tied_embeddings": True,
        "embedding_norm": None,
        "dropout": 0.0,
        "positions": {"_partial_": True} | positions,
        "attention": {
            "_target_": "components.model.attention.Attention",
            "_partial_": True,
            "num_heads": 6,
            "num_kv_heads": 6,
            "head_dim": 8,
            "bias": False,
            "qk_norm": None,
            "layer_scaling": False,
            "dropout": 0.0,
            "backends": ["flash", "efficient", "overrideable", "flex"],
            **attention,
        },
        "mlp": {
            "_target_": "components.model.mlp.MLP",
            "_partial_": True,
            "ffn_dim": 77,
            "activation": "silu",
            "gated": True,
            "bias": False,
            **mlp,
        },
        "norm": norm,
        "initialization": {
            "_target_": "components.model.initialization.Normal",
            "std": 0.2,
            "residual": "plain",
            "padding_row": None,
        },
        "init_from": "none",
    }


ROTARY = {"_target_": "components.model.positions.Rotary", "base": 500.0}
RMS = norm_node(center=False, weight=True, bias=False)
LAYER_NORM = norm_node(center=True, weight=True, bias=True)
PLAIN_MLP = {"activation": "gelu_tanh", "gated": False, "bias": True}


def scale_rotation(section: Section, name: str, **numbers: float) -> Section:
    scaling = {"_target_": f"components.model.rotary_scaling.{name}", "factor": 4.0, **numbers}
    return section | {"positions": section["positions"] | {"scaling": scaling}}
