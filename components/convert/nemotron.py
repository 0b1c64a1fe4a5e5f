"""Nemotron-H: layers with one branch each, Mamba-2, attention without positions, or an MLP.

https://arxiv.org/abs/2504.03624; keys and defaults are from ``transformers``. Its layers with
experts (Nemotron-3) are not supported: our experts have no squared ReLU.
"""

from dataclasses import replace

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.layers import Slot
from components.convert.hf_family import (
    OMIT,
    SAME_NORM,
    HFConfig,
    Requirement,
    Setting,
    change_settings,
    find_name,
)
from components.convert.hybrid import LINEAR, mixer_setting
from components.convert.llama import ACTIVATIONS, LLAMA, MLP
from components.convert.mamba import MAMBA, has_mamba, map_mamba, only_mamba
from components.convert.param_mapping import (
    Condition,
    Weights,
    map_linear,
    map_norm,
    map_vocabulary,
    with_prefix,
)
from components.convert.rotations import FULL
from components.convert.windowed import shortest_pattern

# Earlier files have our names.
_LAYERS = {"mamba": LINEAR, "attention": FULL, "mlp": "mlp"}
_LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
_DEFAULT_LAYERS = "ME*-"
_SLOTS: dict[Slot, str] = {"mixer": LINEAR, "attention": FULL, "mlp": "mlp"}


def _has_unlimited_mamba(features: DecoderSpec) -> bool:
    """Whether the only mixer is the classes' Mamba-2, without a largest step."""
    return has_mamba(features) and only_mamba(features).step_limits[1] is None


def _has_single_parts(features: DecoderSpec) -> bool:
    """Whether each layer is one branch with one part."""
    types = features.layer_types.values()
    return all(len(layer.branches) == len(layer.branches[0]) == 1 for layer in types)


def _has_part(part: Slot) -> Condition:
    """Return the condition that a layer is this part."""
    return lambda features, layer: (
        features.layer_types[features.kind_of(layer).text].branches == ((part,),)
    )


def _write_layers(features: DecoderSpec) -> list[str]:
    texts = (features.kind_of(layer).text for layer in range(features.num_layers))
    return [_SLOTS[features.layer_types[text].branches[0][0]] for text in texts]


def _resolve_layers(types: list[str] | None, values: HFConfig) -> list[str]:
    letters = values.get("hybrid_override_pattern") or _DEFAULT_LAYERS
    kinds = types or [_LETTERS.get(letter, letter) for letter in letters]
    return [_LAYERS.get(kind, kind) for kind in kinds]


def _import_layers(types: list[str], _: HFConfig) -> list[str]:
    return shortest_pattern([find_name("layers_block_type", kind, _LAYERS) for kind in types])


def _import_first_steps(largest: float, values: HFConfig) -> list[float]:
    least = max(values["time_step_min"], values["time_step_floor"])
    return [float(least), float(largest)]


def _unread(key: str, same: str, path: str) -> Setting:
    """Return the row of a key that the class does not read; it must equal another key."""
    return Setting(
        key,
        path=path,
        export=lambda _: OMIT,
        resolve=lambda value, values: values[same] if value is None else value,
    )


# The class bounds all steps by the least of the first steps, and ignores `time_step_limit`.
_MIXER_SETTINGS = (
    mixer_setting("mamba_num_heads", 128, "num_heads", mixer="mamba"),
    mixer_setting("mamba_head_dim", 64, "value_dim", mixer="mamba"),
    mixer_setting("ssm_state_size", 128, "key_dim", mixer="mamba"),
    mixer_setting("n_groups", 8, "num_key_heads", mixer="mamba"),
    mixer_setting("conv_kernel", 4, "conv_size", mixer="mamba"),
    mixer_setting("use_conv_bias", True, "conv_bias", mixer="mamba"),
    Setting(
        "time_step_min",
        0.001,
        "mixers.mamba.step_limits",
        export=lambda m: only_mamba(m).step_limits[0],
        place=lambda least, _: [float(least), None],
    ),
)


_LAYER: Weights = (
    *(
        row
        for part in _SLOTS
        for row in map_norm(f"{part}_norm", "norm", applies=_has_part(part))
    ),
    *map_mamba("mixer", _has_part("mixer")),
    *(
        row
        for name in ("query", "key", "value", "output")
        for row in map_linear(
            f"attention.{name}", f"mixer.{name[0]}_proj", applies=_has_part("attention")
        )
    ),
    *(
        row
        for name in ("up", "down")
        for row in map_linear(f"mlp.{name}", f"mixer.{name}_proj", applies=_has_part("mlp"))
    ),
)

NEMOTRON_H = replace(
    LLAMA,
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    settings=(
        Setting(
            "layers_block_type",
            path="pattern",
            export=_write_layers,
            resolve=_resolve_layers,
            place=_import_layers,
            kind=[],
        ),
        Setting("hybrid_override_pattern", export=lambda _: OMIT, kind=""),  # of earlier files
        *change_settings(
            LLAMA.settings,
            Setting(
                "num_hidden_layers",
                path="num_layers",
                resolve=lambda _, values: len(values["layers_block_type"]),
            ),
            Setting("head_dim", 128, "attention.head_dim"),
            _unread("attention_head_dim", "head_dim", "attention.head_dim"),
            Setting("mlp_hidden_act", "relu2", "mlp.activation", ACTIVATIONS),
            Setting("layer_norm_epsilon", 1e-5, "norm.eps"),
            _unread("rms_norm_eps", "layer_norm_epsilon", "norm.eps"),
            Setting("tie_word_embeddings", False),  # the class has a head of its own anyway
            *_MIXER_SETTINGS,
            without=(
                *("hidden_act", "attention_bias", "rms_norm_eps", "rope_theta", "rope_scaling"),
            ),
            intermediate_size=21_504,
            num_key_value_heads=8,
        ),
    ),
    training=(
        *LLAMA.training,
        Setting(
            "time_step_max",
            0.1,
            "mixers.mamba.step_range",
            export=lambda m: only_mamba(m).step_range[1],
            place=_import_first_steps,
        ),
        Setting("time_step_floor", 1e-4, export=lambda m: only_mamba(m).step_range[0]),
        Setting(
            "rescale_prenorm_residual",
            True,
            "initialization.residual",
            export=lambda m: m.initialization.residual == "scaled",
            place=lambda scaled, _: "scaled" if scaled else "plain",
        ),
    ),
    fixed={
        "positions._target_": "components.model.positions.Positions",
        "mlp.gated": False,
        "tied_embeddings": False,
    },
    imported={
        "mlp._target_": MLP,
        "mixers.mamba._target_": MAMBA,
        "mixers.mamba._partial_": True,
        "mixers.mamba.norm": SAME_NORM,
    },
    requirements=(
        Requirement(
            "pattern",
            "each layer is one part: attention, a linear mixer or an MLP",
            _has_single_parts,
        ),
        Requirement(
            "mixers",
            "one Mamba-2 with the model's norm after its gate and without a largest step",
            _has_unlimited_mamba,
        ),
    ),
    accepted={
        **dict.fromkeys(("attention_bias", "use_bias", "mamba_proj_bias"), False),
        "residual_in_fp32": False,
        "hidden_dropout": 0.0,
        "mamba_hidden_act": "silu",
        "num_nextn_predict_layers": 0,
    },
    # Keys of experts, which need a layer "moe", and keys that the class does not read or that
    # change only its speed.
    ignored=frozenset({
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "n_group"),
        *("moe_shared_expert_intermediate_size", "moe_latent_size", "norm_topk_prob"),
        *("moe_shared_expert_overlap", "num_experts_per_tok", "routed_scaling_factor"),
        *("topk_group", "output_router_logits", "mtp_layers_block_type"),
        *("mtp_hybrid_override_pattern", "expand", "chunk_size", "use_mamba_kernels"),
        *("time_step_limit", "mamba_ssm_cache_dtype", "num_logits_to_keep"),
    }),
    normalize_config=dict,
    check_config=lambda config: None,
    first_weights=(map_vocabulary("embedding.weight", "model.embeddings.weight"),),
    layer_weights=with_prefix("layers.{layer}.", "model.layers.{layer}.", _LAYER),
    last_weights=(
        *map_norm("final_norm", "model.norm_f"),
        map_vocabulary("head.weight", "lm_head.weight"),
    ),
    normalize_name=lambda name: name.removeprefix("backbone."),
)

FAMILIES = (NEMOTRON_H,)
