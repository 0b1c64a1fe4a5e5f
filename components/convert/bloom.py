"""Bloom, https://arxiv.org/abs/2211.05100."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, HFFamily, Need
from components.convert.features import Features
from components.convert.links import TensorLink, megatron_block, module, vocabulary

_FFN_RATIO = 4  # written into the class


class Bloom(HFFamily):
    """ALiBi, a norm after the embedding, biases; queries, keys and values in one map."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    prefix = "transformer."
    no_weights = re.compile(r"self_attention\.(masked_)?bias$")
    needs = (
        Need(
            "model.positions", "it has linear biases (ALiBi)", lambda m: m.positions == "Alibi"
        ),
        family.LAYER_NORM,
        Need(
            "model.embedding_norm",
            "it normalizes embeddings like all else",
            lambda m: m.embedding_norm == m.norm,
        ),
        family.PLAIN_MLP,
        Need("model.mlp.activation", "it has gelu_tanh", lambda m: m.activation == "gelu_tanh"),
        Need(
            "model.mlp.ffn_dim",
            f"it has {_FFN_RATIO} x the width",
            lambda m: m.ffn_dim == _FFN_RATIO * m.dim,
        ),
        family.ALL_BIASES,
        family.KEYS_FOR_EACH_QUERY,
        family.EVEN_HEADS,
        family.NO_QK_NORM,
    )

    keys: ClassVar[ConfigKeys] = {
        "hidden_size": (64, lambda m: m.dim),
        "n_layer": (2, lambda m: m.num_layers),
        "n_head": (8, lambda m: m.num_heads),
        "layer_norm_epsilon": (1e-5, lambda m: m.norm.eps),
        "apply_residual_connection_post_layernorm": (False, lambda _: False),
        "tie_word_embeddings": (True, lambda m: m.tied_embeddings),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = config.get
        return super().stated(config) | {
            "hidden_size": read("n_embed") or read("hidden_size", 64),
            "n_layer": read("n_layer") or read("num_hidden_layers", 2),
            "n_head": read("n_head") or read("num_attention_heads", 8),
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
            yield from megatron_block(f"layers.{layer}", f"transformer.h.{layer}", features)
        yield from module("final_norm", "transformer.ln_f", bias=True)
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


FAMILIES = (Bloom(),)
