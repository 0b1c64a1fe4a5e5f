"""Llama-like families with sliding-window attention: Mistral, OLMo-3 and Gemma 3 (text).

Mistral is https://arxiv.org/abs/2310.06825, OLMo-3 https://arxiv.org/abs/2512.13961, Gemma 3
https://arxiv.org/abs/2503.19786. Keys and defaults are from ``transformers``.

The class of Gemma 3 adds 1 to its norm weights. Our weights contain the sum, so weight decay
pulls our factors to 0, but the class's factors to 1. With ``optimizer.decay: matrices``, the
only difference is in the last bit (`components.convert.param_mapping.MINUS_ONE`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from components.attention_windows import Window, window_of
from components.config.model_spec.decoder import DecoderSpec
from components.convert.hf_family import (
    OMIT,
    DerivedValue,
    HFConfig,
    Requirement,
    Setting,
    change_settings,
    require_value,
)
from components.convert.llama import ACTIVATIONS, EACH_HEAD, LLAMA, OLMO2, llama_layer
from components.convert.param_mapping import MINUS_ONE, map_norm, with_prefix
from components.convert.rotations import (
    FULL,
    ROPE_PARAMETERS,
    WINDOW,
    check_rotation,
    rope_theta,
)

_GEMMA_EVERY = 6  # the class's interval of layers without a window
_OLMO_EVERY = 4

MISTRAL = replace(  # no biases, and the same window in all layers
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting(
            "sliding_window",
            4_096,
            "attention.windows",
            export=lambda m: m.attention.common_window,
            place=lambda window, _: ["full" if window is None else window],
            kind=None,
        ),
        without=("attention_bias", "mlp_bias"),
        intermediate_size=14_336,
        num_key_value_heads=8,
    ),
    fixed=LLAMA.fixed | {"attention.bias": False, "mlp.bias": False},
    requirements=(
        Requirement(
            "attention.windows",
            "all its layers have the same window",
            lambda m: (
                m.attention.common_window is not None and "full" not in m.attention.windows
            ),
        ),
        require_value("positions.local_base", None),
    ),
)


def _write_layer_types(features: DecoderSpec) -> list[str]:
    windows = (window_of(features.attention.windows, n) for n in range(features.num_layers))
    return [FULL if window is None else WINDOW for window in windows]


def _alternate(layers: int, every: int) -> list[str]:
    """Return the layer types: every ``every``-th layer is full, the others have a window."""
    return [WINDOW if (layer + 1) % every else FULL for layer in range(layers)]


def resolve_layer_types(types: list[str] | None, values: HFConfig, *, every: int) -> list[str]:
    """Return the layer types of a file; null means that every ``every``-th layer is full."""
    layers = values["num_hidden_layers"]
    return (types or _alternate(layers, values.get("sliding_window_pattern") or every))[:layers]


def _find_interval(types: list[str]) -> int | None:
    """Return the interval of layers without a window; None if it is not constant."""
    every = types.index(FULL) + 1 if FULL in types else len(types) + 1
    return every if types == _alternate(len(types), every) else None


def _import_windows(types: list[str], values: HFConfig) -> list[Window]:
    window: Window = values["sliding_window"]
    windows: list[Window] = [window if kind == WINDOW else "full" for kind in types]
    return shortest_pattern(windows)


Entry = TypeVar("Entry")


def shortest_pattern(entries: Sequence[Entry]) -> list[Entry]:
    """Return the shortest pattern that gives all layers when repeated."""
    patterns = (entries[:length] for length in range(1, len(entries) + 1))
    layers = range(len(entries))
    return list(next(p for p in patterns if [p[n % len(p)] for n in layers] == list(entries)))


SLIDING_WINDOW = Setting(
    "sliding_window", 4_096, export=lambda m: m.attention.common_window, kind=None
)
LAYER_TYPES = Setting(
    "layer_types",
    path="attention.windows",
    export=_write_layer_types,
    resolve=partial(resolve_layer_types, every=_OLMO_EVERY),
    place=_import_windows,
    kind=[],
)
ONE_WINDOW = Requirement(
    "attention.windows",
    "its windows all have one length",
    lambda m: m.attention.common_window is not None,
)

OLMO3 = replace(  # layers with a window have the same rotary base, without scaling
    OLMO2,
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    settings=change_settings(
        OLMO2.settings, rope_theta(500_000.0), SLIDING_WINDOW, LAYER_TYPES, ROPE_PARAMETERS
    ),
    imported=OLMO2.imported
    | {
        "positions.local_base": DerivedValue(
            "positions.base",
            lambda get: get("positions.base") if get("positions.scaling") else OMIT,
        )
    },
    requirements=(
        ONE_WINDOW,
        Requirement(
            "positions.local_base",
            "its layers with a window have the same rotary base and no scaling",
            lambda m: (
                m.positions.local_base == m.positions.base
                or (m.positions.local_base is None and m.positions.scaling is None)
            ),
        ),
        *OLMO2.requirements,
    ),
    check_config=partial(check_rotation, by_layer=True),
)


def _import_scale_dim(width: Any, values: HFConfig) -> Any:
    return None if width == values["head_dim"] else width


_GEMMA_LAYER = llama_layer(mlp_norm="pre_feedforward_layernorm", norm_transform=MINUS_ONE)
_GEMMA_NORMS_AFTER = (
    *map_norm("attention_norm_after", "post_attention_layernorm", MINUS_ONE),
    *map_norm("mlp_norm_after", "post_feedforward_layernorm", MINUS_ONE),
)

# Norms before and after each branch, gated GELU, and scaled embeddings. Layers with a window
# have their own rotary base, without scaling.
GEMMA3 = replace(
    LLAMA,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        SLIDING_WINDOW,
        LAYER_TYPES._replace(resolve=partial(resolve_layer_types, every=_GEMMA_EVERY)),
        Setting("hidden_activation", "gelu_pytorch_tanh", "mlp.activation", ACTIVATIONS),
        Setting(
            "query_pre_attn_scalar",
            256,
            "attention.scale_dim",
            export=lambda m: m.attention.scale_dim or m.attention.head_dim,
            place=_import_scale_dim,
        ),
        Setting(
            "rope_local_base_freq",
            10_000.0,
            "positions.local_base",
            export=lambda m: m.positions.local_base or m.positions.base,
        ),
        rope_theta(1_000_000.0),
        ROPE_PARAMETERS,
        Setting(
            "sliding_window_pattern",
            export=lambda m: _find_interval(_write_layer_types(m)),
            resolve=lambda _, values: _find_interval(values["layer_types"]),
        ),
        without=("mlp_bias", "hidden_act"),
        hidden_size=2_304,
        intermediate_size=9_216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        tie_word_embeddings=True,
    ),
    fixed=LLAMA.fixed
    | EACH_HEAD
    | {"mlp.bias": False, "norm_placement": "both", "embedding_scale": "sqrt_dim"},
    requirements=(
        ONE_WINDOW,
        Requirement(
            "positions.local_base",
            "its layers with a window have no rotary scaling",
            lambda m: m.positions.local_base is not None or m.positions.scaling is None,
        ),
        Requirement(
            "attention.num_heads",
            "its width is a multiple of the number of heads",
            lambda m: m.dim % m.attention.num_heads == 0,
        ),
    ),
    accepted={"use_bidirectional_attention": False},
    ignored=frozenset({"cache_implementation", "_sliding_window_pattern"}),
    check_config=partial(check_rotation, by_layer=True),
    layer_weights=(
        *_GEMMA_LAYER,
        *with_prefix("layers.{layer}.", "model.layers.{layer}.", _GEMMA_NORMS_AFTER),
    ),
    last_weights=(*map_norm("final_norm", "model.norm", MINUS_ONE), *LLAMA.last_weights[2:]),
)

FAMILIES = (OLMO3, MISTRAL, GEMMA3)
