"""Llama, and what other families share with it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import needs
from components.convert.family import ACTIVATIONS
from components.convert.features import Features
from components.convert.links import TensorLink, module, same, vocabulary
from components.convert.needs import Need


class Llama:
    """Rotary positions, RMSNorm, a gated MLP, grouped heads of any width."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    prefix = "model."
    no_weights = re.compile(r"rotary_emb\.inv_freq$")

    def needs(self, features: Features) -> list[Need]:
        return [
            needs.rotary_positions(features),
            needs.rms_norm(features),
            Need("model.mlp.gated", features.gated, "its MLP is gated"),
            needs.no_experts(features),
            needs.no_qk_norm(features),
            needs.no_embedding_norm(features),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        return {
            "hidden_size": features.dim,
            "intermediate_size": features.ffn_dim,
            "num_hidden_layers": features.num_layers,
            "num_attention_heads": features.num_heads,
            "num_key_value_heads": features.num_kv_heads,
            "head_dim": features.head_dim,
            "hidden_act": ACTIVATIONS[features.activation],
            "attention_bias": features.attention_bias,
            "mlp_bias": features.mlp_bias,
            "rms_norm_eps": features.norm.eps,
            "rope_theta": features.rotary_base,
            "rope_scaling": None,
            "tie_word_embeddings": features.tied_embeddings,
        }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        heads = config.get("num_attention_heads", 32)
        hidden = config.get("hidden_size", 4_096)
        return {
            "hidden_size": hidden,
            "intermediate_size": config.get("intermediate_size", 11_008),
            "num_hidden_layers": config.get("num_hidden_layers", 32),
            "num_attention_heads": heads,
            "num_key_value_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or hidden // heads,
            "hidden_act": config.get("hidden_act", "silu"),
            "attention_bias": config.get("attention_bias", False),
            "mlp_bias": config.get("mlp_bias", False),
            "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
            **rotary_stated(config),
            "tie_word_embeddings": config.get("tie_word_embeddings", False),
        }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return {
            "max_position_embeddings": context_tokens,
            "attention_dropout": features.attention_dropout,
            "initializer_range": features.initial_std,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
            yield same(f"{ours}.attention_norm.weight", f"{theirs}.input_layernorm.weight")
            yield from attention_links(features, layer)
            yield same(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight")
            yield from mlp_links(features, layer)
        yield same("final_norm.weight", "model.norm.weight")
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


def rotary_stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the rotary base and scaling, in the spelling of transformers 5 or an older one."""
    newer = dict(config.get("rope_parameters") or {})
    base = newer.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    scaling = newer if newer.get("rope_type", "default") != "default" else None
    return {"rope_theta": base, "rope_scaling": scaling or config.get("rope_scaling")}


def attention_links(features: Features, layer: int) -> Iterator[TensorLink]:
    """Link the four projections of a layer; other families name them alike."""
    ours, theirs = f"layers.{layer}.attention", f"model.layers.{layer}.self_attn"
    for name, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
        yield from module(
            f"{ours}.{name}", f"{theirs}.{short}_proj", bias=features.attention_bias
        )


def mlp_links(features: Features, layer: int) -> Iterator[TensorLink]:
    """Link the three maps of a layer's gated MLP; other families name them alike."""
    ours, theirs = f"layers.{layer}.mlp", f"model.layers.{layer}.mlp"
    for name in ("gate", "up", "down"):
        yield from module(f"{ours}.{name}", f"{theirs}.{name}_proj", bias=features.mlp_bias)


FAMILY = Llama()
