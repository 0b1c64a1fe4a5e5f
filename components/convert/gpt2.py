"""GPT-2."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, HFFamily, Need
from components.convert.features import Features
from components.convert.links import TensorLink, joined, module, same, turned, vocabulary

# As published; the other spellings compute the same.
_SPELLINGS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new"}


class GPT2(HFFamily):
    """Learned positions, LayerNorm, a plain MLP, biases; weights stored transposed."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    no_weights = re.compile(r"attn\.(masked_)?bias$")
    needs = (
        Need("model.positions", "it has learned positions", lambda m: m.positions == "Learned"),
        family.LAYER_NORM,
        family.PLAIN_MLP,
        family.ALL_BIASES,
        family.KEYS_FOR_EACH_QUERY,
        family.EVEN_HEADS,
        family.NO_QK_NORM,
        family.NO_EMBEDDING_NORM,
    )

    keys: ClassVar[ConfigKeys] = {
        "n_embd": (768, lambda m: m.dim),
        "n_inner": (None, lambda m: m.ffn_dim),
        "n_layer": (12, lambda m: m.num_layers),
        "n_head": (12, lambda m: m.num_heads),
        "n_positions": (1_024, lambda m: m.num_positions),
        "activation_function": ("gelu_new", lambda m: _ACTIVATIONS[m.activation]),
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


FAMILIES = (GPT2(),)
