"""Granite 4.0: attention or Mamba-2 in each layer, then an MLP or experts; fixed multipliers.

https://huggingface.co/ibm-granite/granite-4.0-h-tiny; keys and defaults are from
``transformers``. Only this class has multipliers, so it also fits models of muP and CompleteP.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from components.config.model_spec.decoder import DecoderSpec
from components.convert.experts import OLMOE
from components.convert.hf_family import (
    ANY,
    OMIT,
    SAME_NORM,
    DerivedValue,
    HFConfig,
    Requirement,
    Setting,
    Settings,
    change_settings,
    find_name,
    require_value,
)
from components.convert.hybrid import (
    LINEAR,
    has_mixer,
    mixer_setting,
    of_attention,
    write_types,
)
from components.convert.llama import LLAMA, MLP, llama_layer
from components.convert.mamba import MAMBA, has_mamba, map_mamba, only_mamba
from components.convert.param_mapping import (
    Condition,
    Transform,
    Weights,
    feature_condition,
    map_norm,
    map_weight,
    with_prefix,
)
from components.convert.rotations import FULL, ROPE_SCALING, rope_theta
from components.convert.windowed import shortest_pattern
from components.errors import RecipeError

_LAYERS = {"mamba/mlp": LINEAR, "attention/mlp": FULL}
_EARLIER = {"mamba": LINEAR, "attention": FULL}  # names of layers in published files
_POSITIONS = "components.model.positions"
_INFINITY = {"__float__": "Infinity"}  # as transformers 5 writes it: JSON lacks the number


def _only_with(
    has_part: Callable[[DecoderSpec], Any],
    names_part: Callable[[HFConfig], Any],
    *rows: Setting,
) -> Settings:
    """Return rows of a part, which have no effect in a model without the part."""

    def limit_row(row: Setting) -> Setting:
        def place(_: Any, values: HFConfig) -> Any:
            return row.import_value(values) if names_part(values) else OMIT

        return row._replace(
            export=lambda m: row.export_setting(m) if has_part(m) else OMIT, place=place
        )

    return tuple(map(limit_row, rows))


def _only_given(path: str, value: Any) -> DerivedValue:
    """Return a value of an import, for models with a value at ``path``."""
    return DerivedValue("", lambda get: value if get(path) else OMIT)


def _shorten(number: float) -> float:
    return float(f"{number:.15g}")  # the inverse of an inverse may differ in the last bit


def _factor(
    key: str, path: str, export: Callable[[DecoderSpec], float], place: Any = None
) -> Setting:
    """Return the row of a multiplier; missing or null means 1."""
    return Setting(
        key,
        1.0,
        path,
        export=lambda m: _shorten(export(m)),
        resolve=lambda value, _: _shorten(1.0 if value is None else value),
        place=place,
        kind=None,
    )


def _import_factors(embedding: float, values: HFConfig) -> Any:
    branch, divisor = values["residual_multiplier"], values["logits_scaling"]
    if embedding == branch == divisor == 1:
        return OMIT
    return {
        "_target_": "components.model.parametrization.Multipliers",
        "_partial_": True,
        "embedding_multiplier": embedding,
        "branch_multiplier": branch,
        "output_multiplier": 1.0 / divisor,
    }


def _import_scale(factor: float, values: HFConfig) -> int | None:
    # The later comparison detects factors that are not 1 / sqrt of an integer.
    width = round(min(max(factor, 1e-6), 1.0) ** -2)
    return None if width == values["head_dim"] else width


_MULTIPLIERS = (
    _factor("residual_multiplier", "", lambda m: m.factors.branch),
    _factor("logits_scaling", "", lambda m: 1.0 / m.factors.output),
    _factor(
        "embedding_multiplier",
        "parametrization",
        lambda m: m.factors.embedding,
        _import_factors,
    ),
    _factor(
        "attention_multiplier",
        "attention.scale_dim",
        lambda m: 1.0 / math.sqrt(m.attention.scale_dim or m.attention.head_dim),
        _import_scale,
    ),
)


def _resolve_types(types: list[str] | None, values: HFConfig) -> list[str]:
    kinds = types or [LINEAR] * values["num_hidden_layers"]
    return [_EARLIER.get(kind, kind) for kind in kinds]


def _import_types(types: list[str], _: HFConfig) -> Any:
    pattern = shortest_pattern([find_name("layer_types", kind, _LAYERS) for kind in types])
    return pattern if LINEAR in types else OMIT


def _has_layers(features: DecoderSpec) -> bool:
    """Whether each layer has attention or the class's Mamba-2, and then an MLP."""
    branches = {layer.branches for layer in features.layer_types.values()}
    both = {(("mixer",), ("mlp",)), (("attention",), ("mlp",))}
    if not features.mixers:
        return branches <= both
    is_whole = has_mamba(features) and only_mamba(features).value_width % features.dim == 0
    return branches <= both and is_whole


def _names_mamba(values: HFConfig) -> bool:
    return LINEAR in values["layer_types"]


def _resolve_width(width: Any, values: HFConfig) -> Any:
    if width != "auto":
        return width
    return values["mamba_expand"] * values["hidden_size"] // values["mamba_n_heads"]


def _write_limits(features: DecoderSpec) -> list[Any]:
    least, largest = only_mamba(features).step_limits
    return [least, _INFINITY if largest is None else largest]


def _resolve_limits(limits: Any, _: HFConfig) -> list[Any]:
    pair = limits if isinstance(limits, list) else []
    numbers = [math.inf if limit == _INFINITY else limit for limit in pair]
    if len(numbers) != 2 or not all(type(number) in {int, float} for number in numbers):
        problem = f"{limits!r} is not a pair of numbers"
        raise RecipeError("time_step_limit", problem, "fetch the file again")
    return [_INFINITY if number == math.inf else float(number) for number in numbers]


_MIXER = (
    # The class checks the number also in a model without Mamba-2.
    mixer_setting("mamba_n_heads", 128, "num_heads", mixer="mamba")._replace(
        export=lambda m: only_mamba(m).num_heads if m.mixers else 1,
        resolve=lambda heads, values: heads if _names_mamba(values) else 1,
        place=lambda heads, values: heads if _names_mamba(values) else OMIT,
    ),
    *_only_with(
        lambda m: m.mixers,
        _names_mamba,
        mixer_setting("mamba_n_groups", 1, "num_key_heads", mixer="mamba"),
        mixer_setting("mamba_d_state", 256, "key_dim", mixer="mamba"),
        mixer_setting("mamba_d_conv", 4, "conv_size", mixer="mamba"),
        mixer_setting("mamba_conv_bias", True, "conv_bias", mixer="mamba"),
        Setting("mamba_expand", 2, export=lambda m: only_mamba(m).value_width // m.dim),
        mixer_setting(
            "mamba_d_head", "auto", "value_dim", _resolve_width, mixer="mamba"
        )._replace(kind=ANY),
        Setting(
            "time_step_limit",
            [0.0, _INFINITY],
            "mixers.mamba.step_limits",
            export=_write_limits,
            resolve=_resolve_limits,
            place=lambda limits, _: [None if n == _INFINITY else n for n in limits],
            kind=ANY,
        ),
    ),
)

_ROTATION = (
    Setting(
        "position_embedding_type",
        path="positions._target_",
        export=lambda m: "nope" if m.positions.base is None else "rope",
        resolve=lambda kind, _: "rope" if kind == "rope" else "nope",
        place=lambda kind, _: f"{_POSITIONS}.{'Rotary' if kind == 'rope' else 'Positions'}",
        kind=ANY,
    ),
    *_only_with(
        lambda m: m.positions.base is not None,
        lambda values: values["position_embedding_type"] == "rope",
        rope_theta(10_000.0),
        ROPE_SCALING,
    ),
)


def _with_experts(*rows: Setting) -> Settings:
    return _only_with(lambda m: m.mlp.num_experts, lambda v: v["num_local_experts"], *rows)


# Without experts, the class has only the shared MLP.
_FEED_FORWARD = (
    Setting(
        "num_local_experts",
        8,
        "mlp.num_experts",
        export=lambda m: m.mlp.num_experts or 0,
        place=lambda count, _: count or OMIT,
        kind=0,
    ),
    *_with_experts(Setting("num_experts_per_tok", 2, "mlp.top_k", kind=0)),
    Setting(
        "shared_intermediate_size",
        1_024,
        "mlp.shared_ffn_dim",
        export=lambda m: m.mlp.shared_ffn_dim if m.mlp.num_experts else m.mlp.ffn_dim,
        place=lambda width, values: width if values["num_local_experts"] else OMIT,
    ),
    Setting(
        "intermediate_size",
        11_008,
        "mlp.ffn_dim",
        resolve=lambda width, values: (
            width if values["num_local_experts"] else values["shared_intermediate_size"]
        ),
    ),
)


_has_experts = feature_condition("mlp.num_experts")


def _is_dense(features: DecoderSpec, layer: int) -> bool:
    return not _has_experts(features, layer)


# The rows of the gate, then those of the other matrix; the same for each of stacked experts.
_JOIN_GATE = Transform(
    lambda tensors: [torch.cat(list(tensors), -2)], lambda tensors: tensors[0].chunk(2, -2)
)


def _map_mlp(ours: str, theirs: str, applies: Condition) -> Weights:
    inputs = (f"{ours}.gate.weight", f"{ours}.up.weight")
    return (
        map_weight(inputs, f"{theirs}.input_linear.weight", _JOIN_GATE, applies),
        map_weight(f"{ours}.down.weight", f"{theirs}.output_linear.weight", applies=applies),
    )


_ROUTER = "block_sparse_moe.router.layer.weight"
_LAYER: Weights = (
    *map_norm("mixer_norm", "input_layernorm", applies=has_mixer),
    *map_mamba("mamba", has_mixer),
    *map_norm("mlp_norm", "post_attention_layernorm", applies=has_mixer),
    *_map_mlp("mlp", "shared_mlp", _is_dense),
    *_map_mlp("mlp.shared", "shared_mlp", _has_experts),
    *_map_mlp("mlp", "block_sparse_moe", _has_experts),
    map_weight("mlp.router.weight", _ROUTER, applies=_has_experts),
)

_EXPERTS = {key: value for key, value in OLMOE.imported.items() if "mlp." in key}
_EXPERTS |= {"mlp.renormalize": True, "mlp.routing": "learned"}
_MAMBA = {"_target_": MAMBA, "_partial_": True, "norm": SAME_NORM}

GRANITE = replace(
    LLAMA,
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting(
            "layer_types",
            path="pattern",
            export=write_types,
            resolve=_resolve_types,
            place=_import_types,
            kind=[],
            spellings=("layer_types", "layers_block_type"),
        ),
        # The convolutions have the same activation.
        Setting("hidden_act", "silu", "mlp.activation", {"silu": "silu"}),
        *_MULTIPLIERS,
        *_MIXER,
        *_ROTATION,
        *_FEED_FORWARD,
        without=("intermediate_size", "mlp_bias", "rope_theta", "rope_scaling"),
    ),
    training=(
        *LLAMA.training,
        *_with_experts(Setting("router_aux_loss_coef", 0.001, "mlp.auxiliary_loss")),
        Setting("output_router_logits", False, kind=ANY),
    ),
    fixed={"mlp.gated": True, "mlp.bias": False},
    imported={
        **LLAMA.imported,
        **{key: _only_given("mlp.num_experts", value) for key, value in _EXPERTS.items()},
        "mlp._target_": DerivedValue(
            "", lambda get: _EXPERTS["mlp._target_"] if get("mlp.num_experts") else MLP
        ),
        **{
            f"mixers.mamba.{key}": _only_given("mixers.mamba", value)
            for key, value in _MAMBA.items()
        },
    },
    requirements=(
        Requirement(
            "pattern",
            "layers have attention or one Mamba-2, with the model's norm after its gate and a "
            "multiple of model.dim as its channels, and then an MLP or experts",
            _has_layers,
        ),
        Requirement(
            "positions._target_",
            "it must be Rotary or Positions, here {here}",
            lambda m: m.positions.class_name in {"Rotary", "Positions"},
        ),
        require_value("mlp.routing", "learned"),
        Requirement(
            "mlp.shared_ffn_dim",
            "experts need a shared expert",
            lambda m: bool(m.mlp.num_experts) == bool(m.mlp.shared_ffn_dim),
        ),
        Requirement(
            "mlp.renormalize",
            "the weights of a token's experts sum to 1",
            lambda m: m.mlp.renormalize or not m.mlp.num_experts,
        ),
    ),
    accepted={
        "mamba_proj_bias": False,
        "mlp_bias": False,
        "normalization_function": "rmsnorm",
    },
    ignored=frozenset({"mamba_chunk_size", "init_method"}),
    layer_weights=(
        *of_attention(llama_layer(mlp=())),
        *with_prefix("layers.{layer}.", "model.layers.{layer}.", _LAYER),
    ),
)

FAMILIES = (GRANITE,)
