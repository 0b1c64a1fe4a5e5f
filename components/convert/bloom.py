"""Bloom, https://arxiv.org/abs/2211.05100."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import needs
from components.convert.features import Features
from components.convert.links import TensorLink, interleaved, module, vocabulary
from components.convert.needs import Need

_FFN_RATIO = 4  # written into the class


class Bloom:
    """ALiBi, a norm after the embedding, biases; queries, keys and values in one map."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    prefix = "transformer."
    no_weights = re.compile(r"self_attention\.(masked_)?bias$")

    def needs(self, features: Features) -> list[Need]:
        norm = features.norm
        return [
            Need(
                "model.positions", features.positions == "Alibi", "it has linear biases (ALiBi)"
            ),
            needs.layer_norm(features),
            Need(
                "model.embedding_norm",
                features.embedding_norm == norm,
                "it normalizes embeddings like all else",
            ),
            needs.plain_mlp(features),
            Need(
                "model.mlp.activation", features.activation == "gelu_tanh", "it has gelu_tanh"
            ),
            Need(
                "model.mlp.ffn_dim",
                features.ffn_dim == _FFN_RATIO * features.dim,
                f"it has {_FFN_RATIO} x the width",
            ),
            needs.all_biases(features),
            needs.keys_for_each_query(features),
            needs.even_heads(features),
            needs.no_qk_norm(features),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        return {
            "hidden_size": features.dim,
            "n_layer": features.num_layers,
            "n_head": features.num_heads,
            "layer_norm_epsilon": features.norm.eps,
            "apply_residual_connection_post_layernorm": False,
            "tie_word_embeddings": features.tied_embeddings,
        }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        after = "apply_residual_connection_post_layernorm"
        return {
            "hidden_size": config.get("n_embed") or config.get("hidden_size", 64),
            "n_layer": config.get("n_layer") or config.get("num_hidden_layers", 2),
            "n_head": config.get("n_head") or config.get("num_attention_heads", 8),
            "layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
            after: config.get(after, False),
            "tie_word_embeddings": config.get("tie_word_embeddings", True),
        }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return {
            "seq_length": context_tokens,  # a note: ALiBi has no limit
            "hidden_dropout": features.dropout,
            "attention_dropout": features.attention_dropout,
            "initializer_range": features.initial_std,
            "pretraining_tp": 1,
            "slow_but_exact": False,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield vocabulary("embedding.weight", "transformer.word_embeddings.weight")
        yield from module("embedding_norm", "transformer.word_embeddings_layernorm", bias=True)
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            yield from module(f"{ours}.attention_norm", f"{theirs}.input_layernorm", bias=True)
            for kind in ("weight", "bias"):
                yield interleaved(
                    [f"{ours}.attention.{name}.{kind}" for name in ("query", "key", "value")],
                    f"{theirs}.self_attention.query_key_value.{kind}",
                    num_heads=features.num_heads,
                )
            yield from module(
                f"{ours}.attention.output", f"{theirs}.self_attention.dense", bias=True
            )
            yield from module(
                f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", bias=True
            )
            yield from module(f"{ours}.mlp.up", f"{theirs}.mlp.dense_h_to_4h", bias=True)
            yield from module(f"{ours}.mlp.down", f"{theirs}.mlp.dense_4h_to_h", bias=True)
        yield from module("final_norm", "transformer.ln_f", bias=True)
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


FAMILY = Bloom()
