"""Llama, and what other families share with it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, HFFamily, Need
from components.convert.features import Features
from components.convert.links import TensorLink, module, same, vocabulary

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


class Llama(HFFamily):
    """Rotary positions, RMSNorm, a gated MLP, grouped heads of any width."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    prefix = "model."
    no_weights = re.compile(r"rotary_emb\.inv_freq$")
    needs: ClassVar[tuple[Need, ...]] = (
        family.ROTARY_POSITIONS,
        family.RMS_NORM,
        Need("model.mlp.gated", "its MLP is gated", lambda m: m.gated),
        family.NO_EXPERTS,
        family.NO_QK_NORM,
        family.NO_EMBEDDING_NORM,
    )

    keys: ClassVar[ConfigKeys] = {
        "hidden_size": (4_096, lambda m: m.dim),
        "intermediate_size": (11_008, lambda m: m.ffn_dim),
        "num_hidden_layers": (32, lambda m: m.num_layers),
        "num_attention_heads": (32, lambda m: m.num_heads),
        "num_key_value_heads": (None, lambda m: m.num_kv_heads),
        "head_dim": (None, lambda m: m.head_dim),
        "hidden_act": ("silu", lambda m: _ACTIVATIONS[m.activation]),
        "attention_bias": (False, lambda m: m.attention_bias),
        "mlp_bias": (False, lambda m: m.mlp_bias),
        "rms_norm_eps": (1e-6, lambda m: m.norm.eps),
        "rope_theta": (None, lambda m: m.rotary_base),
        "rope_scaling": (None, lambda _: None),
        "tie_word_embeddings": (False, lambda m: m.tied_embeddings),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = super().stated(config)
        heads = read["num_attention_heads"]
        # The rotary base and scaling, in the spelling of transformers 5 or an older one.
        newer = dict(config.get("rope_parameters") or {})
        base = newer.pop("rope_theta", None) or read["rope_theta"] or 10_000.0
        scaling = newer if newer.get("rope_type", "default") != "default" else None
        read |= {
            "num_key_value_heads": read["num_key_value_heads"] or heads,
            "head_dim": config.get("head_dim") or read["hidden_size"] // heads,
            "rope_theta": base,
            "rope_scaling": scaling or read["rope_scaling"],
        }
        return {key: read[key] for key in self.keys}  # not all of Llama's are OLMo's

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return {
            "max_position_embeddings": context_tokens,
            "attention_dropout": features.attention_dropout,
            "initializer_range": features.initial_std,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        has_weight = features.norm.weight
        yield vocabulary("embedding.weight", "model.embed_tokens.weight")
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
            if has_weight:
                yield same(f"{ours}.attention_norm.weight", f"{theirs}.input_layernorm.weight")
            for name in ("query", "key", "value", "output"):
                projection = f"{theirs}.self_attn.{name[0]}_proj"
                bias = features.attention_bias
                yield from module(f"{ours}.attention.{name}", projection, bias=bias)
            for name in ("query", "key") if features.qk_norm is not None else ():
                norm = f"{theirs}.self_attn.{name[0]}_norm.weight"
                yield same(f"{ours}.attention.{name}_norm.weight", norm)
            if has_weight:
                norm = f"{theirs}.post_attention_layernorm.weight"
                yield same(f"{ours}.mlp_norm.weight", norm)
            yield from self.mlp_links(features, f"{ours}.mlp", f"{theirs}.mlp")
        if has_weight:
            yield same("final_norm.weight", "model.norm.weight")
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")

    def mlp_links(self, features: Features, ours: str, theirs: str) -> Iterator[TensorLink]:
        """Link the three maps of a layer's gated MLP."""
        for name in ("gate", "up", "down"):
            yield from module(f"{ours}.{name}", f"{theirs}.{name}_proj", bias=features.mlp_bias)


FAMILIES = (Llama(),)
