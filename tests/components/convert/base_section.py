"""Base of small model sections: sizes of awkward shapes, norms and scaled rotations."""

from typing import Any

Section = dict[str, Any]


def part(name: str, **keys: Any) -> Section:
    return {"_target_": f"components.model.{name}", "_partial_": True, **keys}


def norm_node(*, center: bool, weight: bool, bias: bool) -> Section:
    return part("norms.Norm", eps=1e-5, center=center, weight=weight, bias=bias)


ROTARY = part("positions.Rotary", base=500.0)
RMS = norm_node(center=False, weight=True, bias=False)
LAYER_NORM = norm_node(center=True, weight=True, bias=True)
PLAIN_MLP = {"activation": "gelu_tanh", "gated": False, "bias": True}
YARN = {"original_tokens": 12, "beta_fast": 1.0, "beta_slow": 0.03125}

ATTENTION = part("attention.Attention", num_heads=6, num_kv_heads=6, head_dim=8, bias=False)
ATTENTION |= {"qk_norm": None, "layer_scaling": False, "dropout": 0.0}
ATTENTION |= {"backends": ["flash", "efficient", "overrideable", "flex"]}
LATENT = part("latent_attention.LatentAttention", num_heads=6, num_kv_heads=6, head_dim=14)
LATENT |= {"rotary_dim": 6, "value_dim": 10, "query_rank": 12, "key_value_rank": 9}
LATENT |= {"latent_norm": RMS | {"eps": 1e-6}, "dropout": 0.0, "backends": ["flex"]}
MLP = part("mlp.MLP", ffn_dim=77, activation="silu", gated=True, bias=False)
EXPERTS = part("moe.Experts", num_experts=5, top_k=2, ffn_dim=20, activation="silu", gated=True)
EXPERTS |= {"renormalize": False, "routing": "learned", "path": "auto"}
EXPERTS |= {"auxiliary_loss": 0.0, "auxiliary_scope": "layer", "z_loss": 0.0}
NORMAL: Section = {"_target_": "components.model.initialization.Normal"}
NORMAL |= {"std": 0.2, "residual": "plain", "padding_row": None}


def base_section(
    positions: Section,
    norm: Section,
    *,
    mlp: Section | None = None,
    attention: Section | None = None,
) -> Section:
    """Return a decoder with more rows than pieces, and with padded rows."""
    decoder: Section = {"_target_": "components.model.decoder.Decoder"}
    sizes = {"dim": 48, "num_layers": 2, "vocab_size": 303, "padded_vocab_size": 320}
    parts = {"positions": {**positions}, "norm": norm, "initialization": NORMAL}
    parts |= {"attention": ATTENTION | (attention or {}), "mlp": MLP | (mlp or {})}
    return decoder | sizes | parts | {"tied_embeddings": True}


def experts(**changes: Any) -> Section:
    return EXPERTS | changes


def latent_attention(**changes: Any) -> Section:
    """Return attention with three head widths: all channels, rotated channels, values."""
    return LATENT | changes


def scale_rotation(section: Section, name: str, **numbers: float) -> Section:
    scaling = {"_target_": f"components.model.rotary_scaling.{name}", "factor": 4.0, **numbers}
    return section | {"positions": section["positions"] | {"scaling": scaling}}
