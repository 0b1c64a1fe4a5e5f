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
        "_target_": "components.model.decoder.Decoder", "dim": 48, "num_layers": 2,
        "vocab_size": 303, "padded_vocab_size": 320, "tied_embeddings": True,
        "embedding_norm": None, "dropout": 0.0, "norm": norm, "init_from": "none",
        "positions": {"_partial_": True} | positions,
        "attention": {
            "_target_": "components.model.attention.Attention", "_partial_": True,
            "num_heads": 6, "num_kv_heads": 6, "head_dim": 8, "bias": False, "qk_norm": None,
            "layer_scaling": False, "dropout": 0.0,
            "backends": ["flash", "efficient", "overrideable", "flex"], **attention,
        },
        "mlp": {
            "_target_": "components.model.mlp.MLP", "_partial_": True, "ffn_dim": 77,
            "activation": "silu", "gated": True, "bias": False, **mlp,
        },
        "initialization": {
            "_target_": "components.model.initialization.Normal", "std": 0.2,
            "residual": "plain", "padding_row": None,
        },
    }  # fmt: skip


ROTARY = {"_target_": "components.model.positions.Rotary", "base": 500.0}
RMS = norm_node(center=False, weight=True, bias=False)
LAYER_NORM = norm_node(center=True, weight=True, bias=True)
PLAIN_MLP = {"activation": "gelu_tanh", "gated": False, "bias": True}
YARN = {"original_tokens": 12, "beta_fast": 1.0, "beta_slow": 0.03125}


def experts(**changes: Any) -> Section:
    return {
        "_target_": "components.model.moe.Experts", "_partial_": True,
        "num_experts": 5, "top_k": 2, "ffn_dim": 20, "activation": "silu", "gated": True,
        "renormalize": False, "routing": "learned", "auxiliary_loss": 0.0,
        "auxiliary_scope": "layer", "z_loss": 0.0, "path": "auto",
    } | changes  # fmt: skip


def latent_attention(**changes: Any) -> Section:
    """Heads of three widths: in all, of what rotates, and of values."""
    return {
        "_target_": "components.model.latent_attention.LatentAttention", "_partial_": True,
        "num_heads": 6, "num_kv_heads": 6, "head_dim": 14, "rotary_dim": 6, "value_dim": 10,
        "query_rank": 12, "key_value_rank": 9, "latent_norm": RMS | {"eps": 1e-6},
        "dropout": 0.0, "backends": ["flex"],
    } | changes  # fmt: skip


def scale_rotation(section: Section, name: str, **numbers: float) -> Section:
    scaling = {"_target_": f"components.model.rotary_scaling.{name}", "factor": 4.0, **numbers}
    return section | {"positions": section["positions"] | {"scaling": scaling}}
