"""Builders of small specifications with uneven sizes, which a test can change."""

from typing import Any

from components.attention_backends import BACKENDS
from components.config.model_spec.attention import GroupedQueryAttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import ExpertsSpec, MLPSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import RotarySpec
from components.model.decoder import Decoder

Settings = dict[str, Any]
ROTARY = RotarySpec(base=10_000.0)
RMS_NORM = NormSpec(eps=1e-5, center=False, weight=True, bias=False)
LAYER_NORM = NormSpec(eps=1e-5, center=True, weight=True, bias=True)


def mlp_spec(ffn_dim: int, activation: Any = "silu", **changes: Any) -> MLPSpec:
    """Build a gated SiLU or another activation without a gate; no biases."""
    plain: Settings = {"gated": activation == "silu", "bias": False}
    return MLPSpec(ffn_dim=ffn_dim, activation=activation, **plain | changes)


def experts_spec(**changes: Any) -> ExpertsSpec:
    """Build four gated experts with a learned router that selects two."""
    settings: Settings = {"num_experts": 4, "top_k": 2, "ffn_dim": 16, "gated": True}
    settings |= {"activation": "silu", "renormalize": False, "routing": "learned"}
    settings |= {"auxiliary_loss": 0.0, "auxiliary_scope": "model", "z_loss": 0.0}
    return ExpertsSpec(**settings | {"path": "auto"} | changes)


def attention_spec(
    heads: int, groups: int, width: int, **changes: Any
) -> GroupedQueryAttentionSpec:
    sizes: Settings = {"num_heads": heads, "num_kv_heads": groups, "head_dim": width}
    plain = {"bias": False, "qk_norm": None, "layer_scaling": False, "dropout": 0.0}
    return GroupedQueryAttentionSpec(**sizes | plain | {"backends": BACKENDS} | changes)


def normal_spec(std: Any = 0.2, residual: Any = "scaled", **changes: Any) -> NormalSpec:
    settings: Settings = {"std": std, "residual": residual, "padding_row": None}
    return NormalSpec(**settings | changes)


def decoder_spec(**changes: Any) -> DecoderSpec:
    """Build a decoder; ``attention_dropout`` is the dropout of its attention."""
    given: Settings = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 10}
    given |= {"dim": 48, "num_layers": 2, "vocab_size": 61, "padded_vocab_size": 67}
    given |= {"tied_embeddings": True, "positions": ROTARY, "norm": RMS_NORM}
    given |= {"mlp": mlp_spec(77), "initialization": normal_spec(), **changes}
    sizes = [given.pop(name) for name in ("num_heads", "num_kv_heads", "head_dim")]
    names = (GroupedQueryAttentionSpec.model_fields.keys() - {"dropout"}) & given.keys()
    attention = {name: given.pop(name) for name in names}
    attention["dropout"] = given.pop("attention_dropout", 0.0)
    given.setdefault("attention", attention_spec(*sizes, **attention))
    return DecoderSpec(**given)


def small_decoder(**changes: Any) -> Decoder:
    return Decoder(decoder_spec(**changes))
