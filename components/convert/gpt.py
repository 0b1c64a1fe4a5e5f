"""GPT-2, and Bloom, https://arxiv.org/abs/2211.05100."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.config.model_spec.decoder import DecoderSpec
from components.convert import family, links
from components.convert.family import ConfigKeys, HFFamily, Need, Section
from components.convert.links import TensorLink
from components.convert.llama import MLP, SAME_NORM
from components.errors import RecipeError

# As published; the other spellings compute the same.
_SPELLINGS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new"}
_ACTIVATIONS |= {"relu_squared": "relu2"}
_FFN_RATIO = 4  # written into the class
_LEARNED = "components.model.positions.Learned"
_ALIBI = "components.model.positions.Alibi"

LAYER_NORM = Need(
    "norm",
    "it has LayerNorm with weight and bias, here is {norm}",
    lambda m: m.norm.description == "LayerNorm with weight and bias",
)
PLAIN_MLP = Need(
    "mlp", "its MLP is plain: neither gated nor of experts", lambda m: m.mlp.is_plain
)
SHARED = (
    family.NO_SCALARS,
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
    family.NO_WINDOWS,
    family.PLAIN_ATTENTION,
)


def _section(
    read: Mapping[str, Any], *, dim: int, heads: int, dropouts: tuple[str, str], mlp: Section
) -> Section:
    """Return what both have: a bias in every map and norm, and dropout."""
    here, in_attention = (float(read[key]) for key in dropouts)
    attention = {"num_heads": heads, "num_kv_heads": heads, "head_dim": dim // heads}
    return {
        "dim": dim,
        "num_layers": read["n_layer"],
        "tied_embeddings": read["tie_word_embeddings"],
        "dropout": here,
        "attention": {**attention, "bias": True, "dropout": in_attention},
        "mlp": {"_target_": MLP, **mlp, "gated": False, "bias": True},
        "norm": {"eps": read["layer_norm_epsilon"], "center": True, "bias": True},
        "initialization": {"std": read["initializer_range"], "residual": "plain"},
    }


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
    trained: ClassVar[Mapping[str, Any]] = {
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "initializer_range": 0.02,
    }
    # Of old files: what a head for classes does, and the places that n_positions has, too.
    unread = frozenset({
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "n_ctx", "reorder_and_upcast_attn"),
        *("n_special", "predict_special_tokens"),
    })

    def section(self, config: Mapping[str, Any]) -> Section:
        read = self.read(config)
        if read["resid_pdrop"] != read["embd_pdrop"]:
            problem = f"{read['embd_pdrop']}, and resid_pdrop is {read['resid_pdrop']}"
            remedy = "a recipe has one for both: give both one value in a copy of the file"
            raise RecipeError("embd_pdrop", problem, remedy)
        kind = "activation_function"
        mlp = {
            "ffn_dim": read["n_inner"],
            "activation": family.named_here(kind, read[kind], _ACTIVATIONS),
        }
        positions = {"_target_": _LEARNED, "num_positions": read["n_positions"]}
        return {"positions": positions} | _section(
            read,
            dim=read["n_embd"],
            heads=read["n_head"],
            dropouts=("resid_pdrop", "attn_pdrop"),
            mlp=mlp,
        )

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        keys = super().stated(config)
        activation = keys["activation_function"]
        return keys | {
            "n_inner": keys["n_inner"] or 4 * keys["n_embd"],
            "activation_function": _SPELLINGS.get(activation, activation),
        }

    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        return {
            "n_ctx": context_tokens,  # read by old versions only
            "resid_pdrop": features.dropout,
            "embd_pdrop": features.dropout,
            "attn_pdrop": features.attention.dropout,
            "initializer_range": features.initialization.initializer_range,
        }

    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
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
    trained: ClassVar[Mapping[str, Any]] = {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
    }
    spellings: ClassVar[Mapping[str, str]] = {
        "n_embed": "hidden_size",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    # Kernels and the cache; a note of the length; and what Megatron kept of its arguments.
    unread = frozenset({
        *("slow_but_exact", "seq_length", "masked_softmax_fusion", "bias_dropout_fusion"),
        *("attention_softmax_in_fp32", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
    })

    def section(self, config: Mapping[str, Any]) -> Section:
        read = self.read(config)
        mlp = {"ffn_dim": _FFN_RATIO * read["hidden_size"], "activation": "gelu_tanh"}
        section = _section(
            read,
            dim=read["hidden_size"],
            heads=read["n_head"],
            dropouts=("hidden_dropout", "attention_dropout"),
            mlp=mlp,
        )
        return {"positions": {"_target_": _ALIBI}, "embedding_norm": SAME_NORM} | section

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = config.get
        return super().stated(config) | {
            "hidden_size": read("n_embed") or read("hidden_size", 64),
            "n_layer": read("n_layer") or read("num_hidden_layers", 2),
            "n_head": read("n_head") or read("num_attention_heads", 8),
        }

    def training(self, features: DecoderSpec, context_tokens: int) -> dict[str, Any]:
        return {
            "seq_length": context_tokens,  # a note: ALiBi has no limit
            "hidden_dropout": features.dropout,
            "attention_dropout": features.attention.dropout,
            "initializer_range": features.initialization.initializer_range,
            "pretraining_tp": 1,
            "slow_but_exact": False,
        }

    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
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
