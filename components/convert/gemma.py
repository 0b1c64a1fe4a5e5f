"""Gemma 3, text alone: https://arxiv.org/abs/2503.19786; keys are those of ``transformers``.

Its class adds 1 to the weights of its norms. Here they hold the sum, so weight decay would draw
them to 0, the class's to 1: decay matrices alone (``optimizer.decay: matrices``), and there is
no difference but in the last bit (`components.convert.links.one_less`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from components.config.model_spec.decoder import DecoderSpec
from components.convert import family
from components.convert.family import ConfigKeys, Need, Section
from components.convert.links import TensorLink, one_less
from components.convert.llama import Llama, scaling_of, without
from components.convert.newer_llama import EACH_HEAD, GATED
from components.convert.windowed import (
    FULL,
    ONE_WINDOW,
    WINDOW,
    Olmo3,
    layer_types,
    rotations_of,
    types_of,
)

_EVERY = 6  # the class's own interval of layers without a window
_LOCAL_BASE = 10_000.0


def _interval(types: list[str]) -> int | None:
    """Find every how many layers one has no window; None where the layers tell no number."""
    every = types.index(FULL) + 1 if FULL in types else len(types) + 1
    return every if types == types_of(len(types), every) else None


def _local_base(features: DecoderSpec) -> float | None:
    return features.positions.local_base or features.positions.base


def _rotations(features: DecoderSpec) -> dict[str, dict[str, Any]]:
    positions = features.positions
    local = _local_base(features)
    return rotations_of(positions.base, scaling_of(positions.scaling), local=local)


class Gemma3(Olmo3):
    """Qwen3 with windows in some layers, norms on both sides, gated GELU, scaled embeddings.

    Layers with a window turn by a base of their own, and are never slowed.
    """

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    default_base = 1_000_000.0
    activation_key = "hidden_activation"
    norm_link = staticmethod(one_less)
    norms = ("input_layernorm", "pre_feedforward_layernorm")
    norms_after = ("post_attention_layernorm", "post_feedforward_layernorm")
    forms: ClassVar[Mapping[str, object]] = {"sliding_window_pattern": None}
    unread = frozenset({"cache_implementation", "_sliding_window_pattern"})
    plain: ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": False}
    usual: ClassVar[tuple[Need, ...]] = (family.NO_CAP, family.UNSCALED)
    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            "norm_placement",
            "it norms what its branches are fed and what they add",
            lambda m: m.norm_placement == "both",
        ),
        Need(
            "embedding_scale",
            "it multiplies its embeddings by the root of the width",
            lambda m: m.embedding_scale == "sqrt_dim",
        ),
        ONE_WINDOW,
        Need(
            "positions.local_base",
            "its layers with a window are never slowed",
            lambda m: m.positions.local_base is not None or m.positions.scaling is None,
        ),
        Need(
            "attention.num_heads",
            "its width is a multiple of the heads",
            lambda m: m.dim % m.attention.num_heads == 0,
        ),
        EACH_HEAD,
        family.ROTARY,
        GATED,
        family.RMS_NORM,
        family.NO_EMBEDDING_NORM,
        family.NO_EXPERTS,
        family.NO_SCALARS,
        family.PLAIN_ATTENTION,
    )
    keys: ClassVar[ConfigKeys] = {
        **without("mlp_bias", "hidden_act"),
        **{key: Olmo3.keys[key] for key in ("sliding_window", "layer_types")},
        "hidden_size": (2_304, lambda m: m.dim),
        "intermediate_size": (9_216, lambda m: m.mlp.ffn_dim),
        "num_hidden_layers": (26, lambda m: m.num_layers),
        "num_attention_heads": (8, lambda m: m.attention.num_heads),
        "num_key_value_heads": (4, lambda m: m.attention.num_kv_heads),
        "head_dim": (256, lambda m: m.attention.head_dim),
        "hidden_activation": ("gelu_pytorch_tanh", Llama.keys["hidden_act"][1]),
        "query_pre_attn_scalar": (256, lambda m: m.attention.scale_dim or m.attention.head_dim),
        "rope_local_base_freq": (_LOCAL_BASE, _local_base),
        # Older releases read the three keys above it.
        "rope_parameters": (None, _rotations),
        "sliding_window_pattern": (_EVERY, lambda m: _interval(layer_types(m))),
        "tie_word_embeddings": (True, lambda m: m.tied_embeddings),
    }

    def stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        newer = config.get("rope_parameters") or {}
        local = {"rope_theta": config.get("rope_local_base_freq", _LOCAL_BASE)}
        local |= newer.get(WINDOW) or {}
        whole = {**(newer.get(FULL) or {}), **(config.get("rope_scaling") or {})}
        layers = config.get("num_hidden_layers", self.keys["num_hidden_layers"][0])
        every = config.get("sliding_window_pattern") or _EVERY
        read = super().stated({
            "head_dim": self.keys["head_dim"][0],
            **config,
            "rope_parameters": {FULL: whole, WINDOW: local},
            "layer_types": config.get("layer_types") or types_of(layers, every),
        })
        return read | {
            "rope_local_base_freq": read["rope_parameters"][WINDOW]["rope_theta"],
            "sliding_window_pattern": _interval(read["layer_types"]),
        }

    def section(self, config: Mapping[str, Any]) -> Section:
        section, read = super().section(config), self.read(config)
        width = read["query_pre_attn_scalar"]
        section["attention"] |= {
            "qk_norm_over": "each_head",
            "scale_dim": None if width == read["head_dim"] else width,
        }
        return section | {"norm_placement": "both", "embedding_scale": "sqrt_dim"}

    def positions(self, config: Mapping[str, Any]) -> Section:
        local = self.read(config)["rope_local_base_freq"]
        return super().positions(config) | {"local_base": float(local)}

    def links(self, features: DecoderSpec) -> Iterator[TensorLink]:
        yield from super().links(features)
        after = ("attention_norm_after", "mlp_norm_after")
        for layer in range(features.num_layers):
            for ours, theirs in zip(after, self.norms_after, strict=True):
                prefix = f"model.layers.{layer}"
                yield one_less(f"layers.{layer}.{ours}.weight", f"{prefix}.{theirs}.weight")


FAMILIES = (Gemma3(),)
