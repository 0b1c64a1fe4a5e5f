"""GPT-2."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from components.convert import needs
from components.convert.features import Features
from components.convert.links import TensorLink, joined, module, same, turned, vocabulary
from components.convert.needs import Need

# As published; the other spellings compute the same.
_SPELLINGS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new"}


class GPT2:
    """Learned positions, LayerNorm, a plain MLP, biases; weights stored transposed."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    no_weights = re.compile(r"attn\.(masked_)?bias$")

    def needs(self, features: Features) -> list[Need]:
        return [
            Need(
                "model.positions", features.positions == "Learned", "it has learned positions"
            ),
            needs.layer_norm(features),
            needs.plain_mlp(features),
            needs.all_biases(features),
            needs.keys_for_each_query(features),
            needs.even_heads(features),
            needs.no_qk_norm(features),
            needs.no_embedding_norm(features),
        ]

    def shape(self, features: Features) -> dict[str, Any]:
        return {
            "n_embd": features.dim,
            "n_inner": features.ffn_dim,
            "n_layer": features.num_layers,
            "n_head": features.num_heads,
            "n_positions": features.num_positions,
            "activation_function": _ACTIVATIONS[features.activation],
            "layer_norm_epsilon": features.norm.eps,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "tie_word_embeddings": features.tied_embeddings,
        }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        width = config.get("n_embd", 768)
        activation = config.get("activation_function", "gelu_new")
        return {
            "n_embd": width,
            "n_inner": config.get("n_inner") or 4 * width,
            "n_layer": config.get("n_layer", 12),
            "n_head": config.get("n_head", 12),
            "n_positions": config.get("n_positions", 1_024),
            "activation_function": _SPELLINGS.get(activation, activation),
            "layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
            "scale_attn_weights": config.get("scale_attn_weights", True),
            "scale_attn_by_inverse_layer_idx": config.get(
                "scale_attn_by_inverse_layer_idx", False
            ),
            "tie_word_embeddings": config.get("tie_word_embeddings", True),
        }

    def training(self, features: Features, context_tokens: int) -> dict[str, Any]:
        return {
            "n_ctx": context_tokens,  # read by old versions only
            "resid_pdrop": features.dropout,
            "embd_pdrop": features.dropout,
            "attn_pdrop": features.attention_dropout,
            "initializer_range": features.initial_std,
        }

    def links(self, features: Features) -> Iterator[TensorLink]:
        yield vocabulary("embedding.weight", "transformer.wte.weight")
        yield same("positions.weight", "transformer.wpe.weight")
        for layer in range(features.num_layers):
            ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
            yield from module(f"{ours}.attention_norm", f"{theirs}.ln_1", bias=True)
            for kind in ("weight", "bias"):
                yield joined(
                    [f"{ours}.attention.{name}.{kind}" for name in ("query", "key", "value")],
                    f"{theirs}.attn.c_attn.{kind}",
                    transposed=kind == "weight",
                )
            yield from _conv1d(f"{ours}.attention.output", f"{theirs}.attn.c_proj")
            yield from module(f"{ours}.mlp_norm", f"{theirs}.ln_2", bias=True)
            yield from _conv1d(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc")
            yield from _conv1d(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj")
        yield from module("final_norm", "transformer.ln_f", bias=True)
        if not features.tied_embeddings:
            yield vocabulary("head.weight", "lm_head.weight")


def _conv1d(ours: str, theirs: str) -> Iterator[TensorLink]:
    yield turned(f"{ours}.weight", f"{theirs}.weight")
    yield same(f"{ours}.bias", f"{theirs}.bias")


FAMILY = GPT2()
