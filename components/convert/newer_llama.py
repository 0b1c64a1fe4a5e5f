"""Relatives of Llama with norms or rotations elsewhere, or an MLP without a gate.

OLMo-2 is https://arxiv.org/abs/2501.00656, Qwen3 https://arxiv.org/abs/2505.09388, SmolLM3
https://huggingface.co/blog/smollm3, Apertus https://arxiv.org/abs/2509.14233; keys and defaults
are those of ``transformers``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.convert import family
from components.convert.family import ConfigKeys, Need, Section
from components.convert.links import TensorLink, module
from components.convert.llama import SAME_NORM, Llama, is_gated, without
from components.model.mlp import XIELU

INTERLEAVED = "components.model.positions.InterleavedRotary"
GATED = Need("mlp", "its MLP is gated and has no bias", is_gated)
EACH_HEAD = Need(
    "attention.qk_norm",
    "it normalizes each head of queries and keys, else like all",
    lambda m: m.attention.norms_heads and m.attention.qk_norm == m.norm,
)
_NORMS = (family.RMS_NORM, family.NO_EMBEDDING_NORM, family.NO_WINDOWS)
_SHARED = (*_NORMS, family.NO_EXPERTS, family.NO_SCALARS, family.PLAIN_ATTENTION)
# How wide a window would be, and from which layer on; no window is used.
_WINDOW = frozenset({"sliding_window", "max_window_layers"})
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
        GATED,
        *_SHARED,
    )
    keys: ClassVar[ConfigKeys] = without("head_dim", "mlp_bias") | {
        "rms_norm_eps": (1e-5, lambda m: m.norm.eps),
    }

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"]["qk_norm"] = SAME_NORM
        return section | {"norm_placement": "after"}


class Qwen3(Llama):
    """Llama with queries and keys normalized head by head."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    unread = _WINDOW
    needs = (
        EACH_HEAD,
        family.ROTARY,
        family.NORM_BEFORE,
        GATED,
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

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"] |= {"qk_norm": SAME_NORM, "qk_norm_over": "each_head"}
        return section


class Opensci(Qwen3):
    """Qwen3 with biases in all linear layers; the hub has its class next to the weights.

    The reference models of OpenEuroLLM and LAION, https://arxiv.org/abs/2509.09009.
    """

    model_type = "opensci"
    architecture = "OpensciForCausalLM"
    qk_norm = "layernorm"
    unread = frozenset()
    plain: ClassVar[Mapping[str, Any]] = {"qk_layernorm": True}
    needs = (
        EACH_HEAD,
        family.ROTARY,
        family.NORM_BEFORE,
        Need("mlp", "its MLP is gated and has biases", lambda m: m.mlp.gated and m.mlp.bias),
        *_SHARED,
    )
    keys: ClassVar[ConfigKeys] = without()

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return Llama.stated(self, config)


def _turned(num_layers: int, skip_every: int) -> list[int]:
    return [int((layer + 1) % skip_every != 0) for layer in range(num_layers)]


class SmolLM3(Llama):
    """Llama that leaves the rotation out in every so many layers."""

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    unread = _WINDOW | {"no_rope_layer_interval"}
    forms: ClassVar[Mapping[str, object]] = {"no_rope_layers": []}
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

    def positions(self, config: Mapping[str, Any]) -> Section:
        turned = self.read(config)["no_rope_layers"]
        # What is not every so many layers is found when the whole is compared.
        every = turned.index(0) + 1 if 0 in turned else len(turned) + 1
        return super().positions(config) | {"_target_": INTERLEAVED, "skip_every": every}


_NOT_SLOWED = {"rope_type": "default"}
_SLOWED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8_192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Apertus(Llama):
    """Llama with an MLP of two maps and xIELU, and queries and keys normalized head by head.

    Where its ``config.json`` does not say how rotation is slowed the class slows it all the
    same, from version 5 on also where it says null: so a kind is always written.
    """

    model_type = "apertus"
    architecture = "ApertusForCausalLM"
    norms = ("attention_layernorm", "feedforward_layernorm")
    default_base = 12_000_000.0
    needs = (
        EACH_HEAD,
        Need(
            "mlp",
            "its MLP is plain xIELU without bias",
            lambda m: m.mlp.is_plain and m.mlp.activation == "xielu" and not m.mlp.bias,
        ),
        family.ROTARY,
        family.EVEN_HEADS,
        family.NORM_BEFORE,
        *_NORMS,
    )
    keys: ClassVar[ConfigKeys] = without("head_dim") | {
        "intermediate_size": (14_336, lambda m: m.mlp.ffn_dim),
        "hidden_act": ("xielu", lambda _: "xielu"),
        "rms_norm_eps": (1e-5, lambda m: m.norm.eps),
        "qk_norm": (True, lambda _: True),
        "post_norm": (False, lambda _: False),
    }

    def shape(self, features: DecoderSpec) -> dict[str, Any]:
        ours = super().shape(features)
        return ours | {"rope_scaling": ours["rope_scaling"] or _NOT_SLOWED}

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        read = super().stated(config)
        says = "rope_scaling" in config or config.get("rope_parameters")
        return read | {
            "rope_scaling": read["rope_scaling"] or (_NOT_SLOWED if says else _SLOWED)
        }

    def section(self, config: Mapping[str, Any]) -> Section:
        section = super().section(config)
        section["attention"] |= {"qk_norm": SAME_NORM, "qk_norm_over": "each_head"}
        return section

    def mlp(self, config: Mapping[str, Any]) -> Section:
        return super().mlp(config) | {"gated": False}

    def mlp_links(self, features: DecoderSpec, ours: str, theirs: str) -> Iterator[TensorLink]:
        """Link two maps and two scalars; the class keeps its constants as buffers beside."""
        for name in ("up", "down"):
            yield from module(f"{ours}.{name}", f"{theirs}.{name}_proj", bias=False)
        yield TensorLink(
            tuple(f"{ours}.activation.{name}" for name in XIELU.starts),
            tuple(f"{theirs}.act_fn.{name}" for name in (*XIELU.starts, "beta", "eps")),
            to_theirs=_with_constants,
            to_ours=lambda tensors: tensors[: len(XIELU.starts)],
        )


def _with_constants(scalars: Sequence[Tensor]) -> Sequence[Tensor]:
    beta, eps = (scalars[0].new_tensor(value) for value in (XIELU.BETA, XIELU.EPS))
    return [*scalars, beta, eps]


FAMILIES = (Olmo2(), Qwen3(), Opensci(), SmolLM3(), Apertus())
