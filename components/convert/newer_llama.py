"""Relatives of Llama with norms elsewhere, or layers without rotation: OLMo-2, Qwen3, SmolLM3.

OLMo-2 is https://arxiv.org/abs/2501.00656, Qwen3 https://arxiv.org/abs/2505.09388, SmolLM3
https://huggingface.co/blog/smollm3; keys and defaults are those of ``transformers``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from components.convert import family
from components.convert.family import ConfigKeys, Need
from components.convert.llama import Llama, is_gated, without

_GATED = Need("mlp", "its MLP is gated and has no bias", is_gated)
_SHARED = (
    *(family.RMS_NORM, family.NO_EXPERTS, family.NO_EMBEDDING_NORM),
    family.PLAIN_ATTENTION,
)
_NO_WINDOW: dict[str, Any] = {"use_sliding_window": (False, lambda _: False)}


class Olmo2(Llama):
    """Llama with norms after attention and MLP, and over all queries and all keys."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    needs = (
        Need(
            "norm_placement",
            "it norms what its branches add",
            lambda m: m.norm_placement == "after",
        ),
        Need(
            "attention.qk_norm",
            "it normalizes queries and keys like all else, over all heads",
            lambda m: m.attention.qk_norm == m.norm and not m.attention.norms_heads,
        ),
        family.ROTARY,
        family.EVEN_HEADS,
        _GATED,
        *_SHARED,
    )
    keys: ClassVar[ConfigKeys] = without("head_dim", "mlp_bias") | {
        "rms_norm_eps": (1e-5, lambda m: m.norm.eps),
    }


class Qwen3(Llama):
    """Llama with queries and keys normalized head by head."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    needs = (
        Need(
            "attention.qk_norm",
            "it normalizes each head of queries and keys, else like all",
            lambda m: m.attention.norms_heads and m.attention.qk_norm == m.norm,
        ),
        family.ROTARY,
        family.NORM_BEFORE,
        _GATED,
        *_SHARED,
    )
    keys: ClassVar[ConfigKeys] = (
        without("mlp_bias")
        | {
            "intermediate_size": (22_016, lambda m: m.mlp.ffn_dim),
            "num_key_value_heads": (32, lambda m: m.attention.num_kv_heads),
        }
        | _NO_WINDOW
    )

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return super().stated({"head_dim": 128, **config})


def _turned(num_layers: int, skip_every: int) -> list[int]:
    return [int((layer + 1) % skip_every != 0) for layer in range(num_layers)]


class SmolLM3(Llama):
    """Llama that leaves the rotation out in every so many layers."""

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    default_base = 2_000_000.0
    needs = (
        Need(
            "positions",
            "some of its layers do not rotate",
            lambda m: m.positions.kind == "InterleavedRotary",
        ),
        family.EVEN_HEADS,
        family.NO_QK_NORM,
        family.NORM_BEFORE,
        Need("mlp.gated", "its MLP is gated", lambda m: m.mlp.gated),
        *_SHARED,
    )
    keys: ClassVar[ConfigKeys] = (
        without("head_dim")
        | {
            "hidden_size": (2_048, lambda m: m.dim),
            "num_hidden_layers": (36, lambda m: m.num_layers),
            "num_attention_heads": (16, lambda m: m.attention.num_heads),
            "num_key_value_heads": (4, lambda m: m.attention.num_kv_heads),
            "tie_word_embeddings": (True, lambda m: m.tied_embeddings),
            "no_rope_layers": (
                None,
                lambda m: _turned(m.num_layers, m.positions.skip_every or 1),
            ),
        }
        | _NO_WINDOW
    )

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = super().stated(config)
        every = config.get("no_rope_layer_interval", 4)
        # The list says for each layer whether it rotates; it may be longer than the model.
        turned = read["no_rope_layers"] or _turned(read["num_hidden_layers"], every)
        return read | {"no_rope_layers": turned[: read["num_hidden_layers"]]}


FAMILIES = (Olmo2(), Qwen3(), SmolLM3())
