"""GPT-2, and Bloom, https://arxiv.org/abs/2211.05100."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.convert import family, links
from components.convert.family import ConfigKeys, HFFamily, Need
from components.convert.features import Features
from components.convert.links import TensorLink

# As published; the other spellings compute the same.
_SPELLINGS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new"}
_FFN_RATIO = 4  # written into the class

LAYER_NORM = Need(
    "norm",
    "it has LayerNorm with weight and bias, here is {norm}",
    lambda m: m.norm.kind == "LayerNorm with weight and bias",
)
PLAIN_MLP = Need(
    "mlp", "its MLP is plain: neither gated nor of experts", lambda m: m.mlp.is_plain
)
SHARED = (
    Need(
        "attention.bias", "all its maps have biases", lambda m: m.attention.bias and m.mlp.bias
    ),
    Need(
        "attention.num_kv_heads",
        "it has as many as query heads",
        lambda m: m.attention.num_kv_heads == m.attention.num_heads,
    ),
    family.EVEN_HEADS,
    family.NO_QK_NORM,
    family.NORM_BEFORE,
    family.PLAIN_ATTENTION,
)


class GPT2(HFFamily):
    """Learned positions, LayerNorm, a plain MLP, biases; weights stored transposed."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    no_weights = re.compile(r"attn\.(masked_)?bias$")
    needs = (
        Need("positions", "it has learned positions", lambda m: m.positions.kind == "Learned"),
        LAYER_NORM,
        PLAIN_MLP,
        *SHARED,
        family.NO_EMBEDDING_NORM,
    )

    keys: ClassVar[ConfigKeys] = {
        "n_embd": (768, lambda m: m.dim),
        "n_inner": (None, lambda m: m.mlp.ffn_dim),
        "n_layer": (12, lambda m: m.num_layers),
        "n_head": (12, lambda m: m.attention.num_heads),
        "n_positions": (1_024, lambda m: m.positions.num_positions),
        "activation_function": ("gelu_new", lambda m: _ACTIVATIONS[m.mlp.activation]),
        "layer_norm_epsilon": (1e-5, lambda m: m.norm.eps),
        "scale_attn_weights": (True, lambda _: True),
        "scale_attn_by_inverse_layer_idx": (False, lambda _: False),
        "tie_word_embeddings": (True, lambda m: m.tied_embeddings),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys = super().stated(config)
        activation = keys["activation_function"]
        return keys | {
            "n_inner": keys["n_inner"] or 4 * keys["n_embd"],
            "activation_function": _SPELLINGS.get(activation, activation),
        }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return {
            "n_ctx": context_tokens,  # read by old versions only
            "resid_pdrop": features.dropout,
            "embd_pdrop": features.dropout,
            "attn_pdrop": features.attention.dropout,
            "initializer_range": features.initialization["std"],
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield links.vocabulary("embedding.weight", "transformer.wte.weight")
        yield links.same("positions.weight", "transformer.wpe.weight")
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            yield from links.module(f"{ours}.attention_norm", f"{theirs}.ln_1")
            for kind in ("weight", "bias"):
                yield links.joined(
                    [f"{ours}.attention.{name}.{kind}" for name in ("query", "key", "value")],
                    f"{theirs}.attn.c_attn.{kind}",
                    transposed=kind == "weight",
                )
            yield from links.turned(f"{ours}.attention.output", f"{theirs}.attn.c_proj")
            yield from links.module(f"{ours}.mlp_norm", f"{theirs}.ln_2")
            yield from links.turned(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc")
            yield from links.turned(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj")
        yield from links.module("final_norm", "transformer.ln_f")
        if not features.tied_embeddings:
            yield links.vocabulary("head.weight", "lm_head.weight")


class Bloom(HFFamily):
    """ALiBi, a norm after the embedding, biases; queries, keys and values in one map."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    prefix = "transformer."
    no_weights = re.compile(r"self_attention\.(masked_)?bias$")
    needs = (
        Need(
            "positions", "it has linear biases (ALiBi)", lambda m: m.positions.kind == "Alibi"
        ),
        LAYER_NORM,
        Need(
            "embedding_norm",
            "it normalizes embeddings like all else",
            lambda m: m.embedding_norm == m.norm,
        ),
        PLAIN_MLP,
        Need("mlp.activation", "it has gelu_tanh", lambda m: m.mlp.activation == "gelu_tanh"),
        Need(
            "mlp.ffn_dim",
            f"it has {_FFN_RATIO} x the width",
            lambda m: m.mlp.ffn_dim == _FFN_RATIO * m.dim,
        ),
        *SHARED,
    )

    keys: ClassVar[ConfigKeys] = {
        "hidden_size": (64, lambda m: m.dim),
        "n_layer": (2, lambda m: m.num_layers),
        "n_head": (8, lambda m: m.attention.num_heads),
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
            "attention_dropout": features.attention.dropout,
            "initializer_range": features.initialization["std"],
            "pretraining_tp": 1,
            "slow_but_exact": False,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield links.vocabulary("embedding.weight", "transformer.word_embeddings.weight")
        yield from links.module("embedding_norm", "transformer.word_embeddings_layernorm")
        for layer in range(features.num_layers):
            yield from links.megatron_block(
                f"layers.{layer}", f"transformer.h.{layer}", features
            )
        yield from links.module("final_norm", "transformer.ln_f")
        if not features.tied_embeddings:
            yield links.vocabulary("head.weight", "lm_head.weight")


FAMILIES = (Bloom(), GPT2())
