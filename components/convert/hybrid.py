"""OLMo-Hybrid: gated delta nets, and attention with or without RoPE in some layers.

https://huggingface.co/allenai/Olmo-Hybrid-7B; keys and defaults are from ``transformers``.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.mixers import GatedDeltaNetSpec, MixerSpec
from components.convert.hf_family import (
    HFConfig,
    Requirement,
    Setting,
    change_settings,
    read_feature,
)
from components.convert.llama import (
    OLMO2,
    default_to_heads,
    gated_mlp,
    llama_layer,
    rms_norm_node,
)
from components.convert.param_mapping import (
    Transform,
    Weight,
    Weights,
    map_norm,
    map_weight,
    with_prefix,
)
from components.convert.rotations import FULL
from components.convert.windowed import shortest_pattern

LINEAR = "linear_attention"
_LAYERS = {LINEAR: "delta/mlp", FULL: "attention/mlp"}
INTERVAL = "full_attention_interval"  # of layers with attention
_EVERY = 4  # the classes' default interval
_EPS = 1e-5  # of the norm after the states, fixed in the class
# With null, the class would take its default base, and rotate.
_NO_ROPE = {"rope_theta": None, "rope_type": "default"}
_POSITIONS = "components.model.positions"
DELTA_NODE = {
    "mixers.delta._target_": "components.model.mixers.gated_delta_net.GatedDeltaNet",
    "mixers.delta._partial_": True,
}


def only_mixer(features: DecoderSpec) -> MixerSpec | None:
    """Return the linear mixer of a model with one; None for other models."""
    mixers = list(features.mixers.values())
    return mixers[0] if len(mixers) == 1 else None


def has_mixer(features: DecoderSpec, layer: int) -> bool:
    """Condition of rows of layers with a linear mixer."""
    return features.layer_types[features.kind_of(layer).text].mixer is not None


def write_types(features: DecoderSpec) -> list[str]:
    """Return ``layer_types``, the kind of each layer."""
    layers = range(features.num_layers)
    return [LINEAR if has_mixer(features, layer) else FULL for layer in layers]


def _resolve_types(types: list[str] | None, values: HFConfig) -> list[str]:
    layers: int = values["num_hidden_layers"]
    every: int = values.get(INTERVAL) or _EVERY
    return types or [LINEAR if (n + 1) % every else FULL for n in range(layers)]


def import_pattern(types: list[str], _: HFConfig) -> Any:
    """Return the pattern of ``layer_types``, with a linear mixer named ``delta``."""
    return shortest_pattern([_LAYERS.get(kind, kind) for kind in types])


LAYER_TYPES = Setting(
    "layer_types",
    path="pattern",
    export=write_types,
    resolve=_resolve_types,
    place=import_pattern,
    kind=[],
)


def _write_rotation(features: DecoderSpec) -> dict[str, Any]:
    return _NO_ROPE | {"rope_theta": read_feature(features, "positions.base")}


def _import_rotation(rotation: HFConfig, _: HFConfig) -> Any:
    if (base := rotation["rope_theta"]) is None:
        return {"_target_": f"{_POSITIONS}.Positions"}
    return {"_target_": f"{_POSITIONS}.Rotary", "base": float(base)}


def _is_plain_rotation(features: DecoderSpec) -> bool:
    """Whether attention has the class's positions: RoPE with one base, or none."""
    positions = features.positions
    plain = positions.scaling is None and positions.local_base is None
    return positions.class_name in {"Positions", "Rotary"} and plain


def has_layers_of(kind: type[MixerSpec], features: DecoderSpec) -> bool:
    """Whether each layer has attention or one linear mixer, always the same, and an MLP."""
    branches = {layer.branches for layer in features.layer_types.values()}
    both = {(("mixer",), ("mlp",)), (("attention",), ("mlp",))}
    return isinstance(only_mixer(features), kind) and branches == both


def delta_net(features: DecoderSpec) -> GatedDeltaNetSpec | None:
    """Return the gated delta net if each layer has it or attention, with norms before it."""
    mixer = only_mixer(features)
    if not isinstance(mixer, GatedDeltaNetSpec):
        return None
    placement = mixer.norm_placement or features.norm_placement
    is_alone = has_layers_of(GatedDeltaNetSpec, features)
    return mixer if placement == "before" and is_alone else None


def _is_delta(features: DecoderSpec) -> bool:
    """Whether all layers are like the class's, with the same gated delta net."""
    mixer = delta_net(features)
    if mixer is None or features.norm_placement != "after":
        return False
    norm = mixer.norm
    return norm.weight and not norm.center and norm.eps == _EPS


def mixer_setting(
    key: str, default: Any, name: str, resolve: Any = None, *, mixer: str = "delta"
) -> Setting:
    """Return the row of a key of the linear mixer; a recipe may name it as it likes."""
    return Setting(
        key,
        default,
        f"mixers.{mixer}.{name}",
        export=lambda m: getattr(only_mixer(m), name, None),
        resolve=resolve,
    )


KEY_HEADS = mixer_setting("linear_num_key_heads", None, "num_key_heads")._replace(
    export=lambda m: getattr(only_mixer(m), "key_heads", None)
)


def _range(name: str, keys: tuple[str, str], defaults: tuple[float, float]) -> list[Setting]:
    """Return the rows of a range with a key for each end."""
    (first, low), (last, high) = zip(keys, defaults, strict=True)
    return [
        Setting(first, low, export=lambda m: getattr(only_mixer(m), name)[0]),
        Setting(
            last,
            high,
            f"mixers.delta.{name}",
            export=lambda m: getattr(only_mixer(m), name)[1],
            place=lambda value, values: [float(values[first]), float(value)],
        ),
    ]


def join_taps(widths: list[int]) -> Transform:
    """Return the transform between convolutions and one over the channels of all."""
    return Transform(
        lambda tensors: [torch.cat(list(tensors))[:, None]],
        lambda tensors: torch.split(tensors[0][:, 0], widths),
    )


def _join_delta(features: DecoderSpec) -> Transform:
    mixer = only_mixer(features)
    return join_taps([mixer.key_width, mixer.key_width, mixer.value_width] if mixer else [])


def map_mixer(ours: str, theirs: str) -> Weights:
    """Return the table rows of a weight of the linear mixer."""
    return (map_weight(f"mixer.{ours}", f"linear_attn.{theirs}", applies=has_mixer),)


_TAPS = tuple(f"mixer.{name}_conv.taps" for name in ("query", "key", "value"))
STATE_WEIGHTS: Weights = (  # of the convolution and the decays
    map_weight(_TAPS, "linear_attn.conv1d.weight", _join_delta, has_mixer),
    *map_mixer("log_decay", "A_log"),
    *map_mixer("step_bias", "dt_bias"),
)
_MAPS = tuple(
    zip("qkvabgo", ("query", "key", "value", "decay", "step", "gate", "output"), strict=True)
)
_DELTA_LAYER: Weights = (
    *map_norm("mixer_norm", "input_layernorm", applies=has_mixer),
    *(
        row
        for theirs, ours in _MAPS
        for row in map_mixer(f"{ours}.weight", f"{theirs}_proj.weight")
    ),
    *STATE_WEIGHTS,
    *map_mixer("norm.weight", "o_norm.weight"),
    *map_norm("mlp_norm", "post_attention_layernorm", applies=has_mixer),
    *gated_mlp(has_mixer),
)


def of_attention(rows: Iterable[Weight]) -> Weights:
    """Return the rows, for layers with attention only."""

    def restrict_rows(condition: Any) -> Any:
        return lambda features, layer: (
            not has_mixer(features, layer) and condition(features, layer)
        )

    return tuple(row._replace(applies=restrict_rows(row.applies)) for row in rows)


OLMO_HYBRID = replace(
    OLMO2,
    model_type="olmo_hybrid",
    architecture="OlmoHybridForCausalLM",
    settings=change_settings(
        OLMO2.settings,
        LAYER_TYPES,
        Setting(
            "rope_parameters",
            _NO_ROPE,
            path="positions",
            export=_write_rotation,
            resolve=lambda rotation, _: _NO_ROPE | (rotation or {}),
            place=_import_rotation,
            kind={},
        ),
        KEY_HEADS._replace(resolve=default_to_heads),
        mixer_setting("linear_num_value_heads", None, "num_heads", default_to_heads),
        mixer_setting(
            "linear_key_head_dim",
            None,
            "key_dim",
            lambda width, values: (
                width or int(0.75 * values["hidden_size"] / values["linear_num_key_heads"])
            ),
        ),
        mixer_setting(
            "linear_value_head_dim",
            None,
            "value_dim",
            lambda width, values: width or 2 * values["linear_key_head_dim"],
        ),
        mixer_setting("linear_conv_kernel_dim", 4, "conv_size"),
        mixer_setting("linear_allow_neg_eigval", True, "negative_eigenvalues"),
        without=("rope_theta", "rope_scaling"),
        hidden_size=3_840,
        num_attention_heads=30,
        rms_norm_eps=1e-6,
    ),
    training=(
        *OLMO2.training,
        *_range("decay_range", ("linear_a_log_min", "linear_a_log_max"), (0.0, 16.0)),
        *_range("step_range", ("linear_dt_min", "linear_dt_max"), (0.001, 0.1)),
        Setting("linear_dt_init_floor", 1e-4),
    ),
    fixed={key: OLMO2.fixed[key] for key in OLMO2.fixed if key != "positions._target_"},
    imported={
        **OLMO2.imported,
        **DELTA_NODE,
        "mixers.delta.norm": rms_norm_node(_EPS),
        "mixers.delta.norm_placement": "before",
    },
    requirements=(
        *OLMO2.requirements,
        Requirement(
            "positions",
            "it is Rotary without scaling or local base, or Positions, in all layers",
            _is_plain_rotation,
        ),
        Requirement(
            "pattern",
            "layers have attention with norms after, or a gated delta net with norms before",
            _is_delta,
        ),
    ),
    normalize_config=dict,
    layer_weights=(
        *of_attention(
            llama_layer(
                attention_norm="post_attention_layernorm", mlp_norm="post_feedforward_layernorm"
            )
        ),
        *with_prefix("layers.{layer}.", "model.layers.{layer}.", _DELTA_LAYER),
    ),
)

FAMILIES = (OLMO_HYBRID,)
