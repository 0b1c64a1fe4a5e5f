"""What a model section asks for, as far as a Hugging Face class has to know it.

Keys that only training reads are named here and left aside; a key that is in neither list is
refused, since a feature that is silently dropped gives a folder that computes something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.errors import RecipeError

# What each node may hold; the second line of each is training's business alone.
_KNOWN = {
    "": (
        *("dim", "num_layers", "vocab_size", "padded_vocab_size", "tied_embeddings"),
        *("positions", "attention", "mlp", "norm", "embedding_norm"),
        *("dropout", "initialization", "init_from"),
    ),
    "positions": ("base", "num_positions"),
    "attention": (
        *("num_heads", "num_kv_heads", "head_dim", "bias", "qk_norm", "dropout"),
        *("layer_scaling", "backend"),
    ),
    "mlp": (
        *("ffn_dim", "activation", "gated", "bias", "num_experts", "top_k", "renormalize"),
        *("routing", "auxiliary_loss", "auxiliary_scope", "z_loss", "path"),
    ),
    "norm": ("eps", "center", "weight", "bias"),
    "initialization": ("std", "residual", "padding_row"),
}


@dataclass(frozen=True, kw_only=True)
class NormFeatures:
    """One kind of norm; two nodes that say the same are equal."""

    eps: float
    center: bool
    weight: bool
    bias: bool

    @property
    def is_rms(self) -> bool:
        return not self.center and self.weight and not self.bias

    @property
    def is_layer_norm(self) -> bool:
        return self.center and self.weight and self.bias

    @property
    def is_bare(self) -> bool:
        """Whether it is a LayerNorm without parameters."""
        return self.center and not self.weight and not self.bias

    def __str__(self) -> str:
        kind = "LayerNorm" if self.center else "RMSNorm"
        vectors = [name for name in ("weight", "bias") if getattr(self, name)]
        return f"{kind} with {' and '.join(vectors) or 'no parameters'}, eps {self.eps:g}"


@dataclass(frozen=True, kw_only=True)
class Features:
    """A decoder in the terms of the model section; ``None`` is a feature it does not have."""

    dim: int
    num_layers: int
    vocab_size: int
    padded_vocab_size: int
    tied_embeddings: bool
    positions: str
    rotary_base: float | None
    num_positions: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_bias: bool
    attention_dropout: float
    qk_norm: NormFeatures | None
    ffn_dim: int
    activation: str
    gated: bool
    mlp_bias: bool
    num_experts: int | None
    top_k: int | None
    renormalize: bool
    auxiliary_loss: float
    routing: str
    norm: NormFeatures
    embedding_norm: NormFeatures | None
    dropout: float
    initial_std: float

    @property
    def has_plain_mlp(self) -> bool:
        return not self.gated and self.num_experts is None


def read_features(section: Mapping[str, Any]) -> Features:
    """Read the model section of a recipe.

    Raises:
        RecipeError: a key that this room does not know, so cannot convert.
    """
    for name in _KNOWN:
        _check_keys(section[name] if name else section, name, f"model.{name}".rstrip("."))
    attention, mlp, positions = section["attention"], section["mlp"], section["positions"]
    qk_norm, embedding = attention["qk_norm"], section["embedding_norm"]
    return Features(
        **{key: section[key] for key in ("dim", "num_layers", "vocab_size")},
        **{key: section[key] for key in ("padded_vocab_size", "tied_embeddings", "dropout")},
        **{key: attention[key] for key in ("num_heads", "num_kv_heads", "head_dim")},
        **{key: mlp[key] for key in ("ffn_dim", "activation", "gated")},
        positions=str(positions["_target_"]).rpartition(".")[2],
        rotary_base=positions.get("base"),
        num_positions=positions.get("num_positions"),
        attention_bias=attention["bias"],
        attention_dropout=attention["dropout"],
        qk_norm=qk_norm and _read_norm(qk_norm, "model.attention.qk_norm"),
        mlp_bias=mlp.get("bias", False),  # experts have none
        num_experts=mlp.get("num_experts"),
        top_k=mlp.get("top_k"),
        renormalize=mlp.get("renormalize", False),
        auxiliary_loss=float(mlp.get("auxiliary_loss", 0.0)),
        routing=mlp.get("routing", "learned"),
        norm=_read_norm(section["norm"], "model.norm"),
        embedding_norm=embedding and _read_norm(embedding, "model.embedding_norm"),
        initial_std=section["initialization"]["std"],
    )


def _read_norm(node: Mapping[str, Any], path: str) -> NormFeatures:
    _check_keys(node, "norm", path)
    return NormFeatures(**{key: node[key] for key in _KNOWN["norm"]})


def _check_keys(node: Mapping[str, Any], name: str, path: str) -> None:
    for key in node:
        if key not in _KNOWN[name] and not key.startswith("_"):
            raise RecipeError(
                f"{path}.{key}",
                "conversion does not know this key, so cannot say what it changes",
                "teach components/convert/features.py what a Hugging Face class makes of it",
            )
