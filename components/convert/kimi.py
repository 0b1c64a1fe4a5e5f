"""Kimi Linear: Kimi delta attention, latent attention without positions, and experts.

https://huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct. Keys and tensors have the names
of the published folder, which ``transformers`` and the publisher's code read; imports also read
the names of ``transformers``.
"""

import re
from dataclasses import replace

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.mixers import KimiDeltaSpec
from components.convert.experts import DEEPSEEK_V3, LATENT_ATTENTION, sparse_mlp
from components.convert.hf_family import (
    OMIT,
    SAME_NORM,
    HFConfig,
    Requirement,
    Section,
    Setting,
    Settings,
    change_settings,
)
from components.convert.hybrid import (
    LINEAR,
    has_layers_of,
    has_mixer,
    import_pattern,
    of_attention,
    only_mixer,
    write_types,
)
from components.convert.llama import default_to_heads
from components.convert.param_mapping import (
    RENAME,
    Transform,
    map_norm,
    map_weight,
    with_prefix,
)
from components.convert.rotations import FULL

_EVERY = 4  # the class's interval of layers with attention
# Names of the published keys, and of transformers.
_RENAMED = {
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
    "n_group": ("num_expert_group", "n_group"),
    "norm_topk_prob": ("moe_renormalize", "norm_topk_prob"),
    "max_position_embeddings": ("model_max_length", "max_position_embeddings"),
}
# Sizes of delta attention: published key in `linear_attn_config`, key of transformers, default.
_SIZES = (
    ("head_dim", "linear_head_dim", 128),
    ("num_heads", "linear_num_heads", 32),
    ("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
)
_LISTS = {"full_attn_layers": FULL, "kda_layers": LINEAR}  # layers are counted from 1
_DELTA = "components.model.mixers.kimi_delta.KimiDelta"

# transformers saves the MLP of a dense layer with the name of experts.
_DENSE = re.compile(r"\.block_sparse_moe(?=\.(gate|up|down)_proj\.)")


def _rename_keys(rows: Settings) -> Settings:
    """Return a table with the published keys, and the other keys as further spellings."""
    spellings = {row.key: _RENAMED.get(row.key, (row.key,)) for row in rows}
    return tuple(
        row._replace(key=spellings[row.key][0], spellings=spellings[row.key]) for row in rows
    )


def _resolve_types(types: list[str] | None, values: HFConfig) -> list[str]:
    layers: int = values["num_hidden_layers"]
    lists = values.get("linear_attn_config") or {}
    full = set(range(_EVERY + 1, layers + 1, _EVERY))
    if lists.keys() >= _LISTS.keys():
        full = set(lists["full_attn_layers"] or ())
    return types or [FULL if layer in full else LINEAR for layer in range(1, layers + 1)]


def _list_layers(types: list[str]) -> Section:
    return {
        name: [layer for layer, own in enumerate(types, 1) if own == kind]
        for name, kind in _LISTS.items()
    }


def _write_delta(features: DecoderSpec) -> Section:
    names = ("key_dim", "num_heads", "conv_size")
    sizes = (getattr(only_mixer(features), name, None) for name in names)
    keys = (key for key, _, _ in _SIZES)
    return _list_layers(write_types(features)) | dict(zip(keys, sizes, strict=True))


def _resolve_delta(delta: HFConfig | None, values: HFConfig) -> Section:
    # The later comparison detects lists that do not contain each layer once.
    sizes = {key: values[other] for key, other, _ in _SIZES}
    return _list_layers(values["layer_types"]) | sizes | dict(delta or {})


def _import_delta(delta: HFConfig, _: HFConfig) -> Section:
    sizes = dict.fromkeys(("key_dim", "value_dim", "gate_rank"), delta["head_dim"])
    sizes |= {"num_heads": delta["num_heads"], "conv_size": delta["short_conv_kernel_size"]}
    return {"_target_": _DELTA, "_partial_": True, "norm": SAME_NORM, **sizes}


def _list_mlps(num_dense: int, num_layers: int) -> list[str]:
    return ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense)


def _count_dense(count: int, values: HFConfig) -> int:
    # The later comparison of the whole list detects further dense layers.
    types = values.get("mlp_layer_types")
    return [*types, "sparse"].index("sparse") if types else count


def _is_kimi(features: DecoderSpec) -> bool:
    """Whether delta attention is like the class's: one width, and the model's norm."""
    mixer = only_mixer(features)
    if mixer is None or not has_layers_of(KimiDeltaSpec, features):
        return False
    has_one_width = mixer.key_dim == mixer.value_dim == mixer.gate_rank
    has_same_norm = mixer.norm == features.norm and mixer.norm_placement in {None, "before"}
    return has_one_width and has_same_norm


_A_LOG = Transform(
    lambda tensors: [tensors[0].view(1, 1, -1, 1)], lambda tensors: [tensors[0].flatten()]
)
_TAPS = Transform(
    lambda tensors: [tensors[0][:, None]], lambda tensors: [tensors[0].squeeze(1)]
)
_MAPS = {"q": "query", "k": "key", "v": "value", "b": "step", "o": "output"}
_MAPS |= {"f_a": "decay_down", "f_b": "decay", "g_a": "gate_down", "g_b": "gate"}
_MIXER = (
    *((f"{ours}.weight", f"{theirs}_proj.weight", RENAME) for theirs, ours in _MAPS.items()),
    *((f"{_MAPS[name]}_conv.taps", f"{name}_conv1d.weight", _TAPS) for name in "qkv"),
    ("log_decay", "A_log", _A_LOG),
    ("step_bias", "dt_bias", RENAME),
    ("norm.weight", "o_norm.weight", RENAME),
)

_ROWS = {row.key: row for row in _rename_keys(DEEPSEEK_V3.settings)}

KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    settings=change_settings(
        tuple(_ROWS.values()),
        Setting(
            "num_key_value_heads",
            32,
            "attention.num_kv_heads",
            resolve=default_to_heads,
            kind=None,
        ),
        # The class applies the same function to convolutions, which here have SiLU.
        Setting("hidden_act", "silu", "mlp.activation", {"silu": "silu"}),
        _ROWS["first_k_dense_replace"]._replace(default=1, resolve=_count_dense),
        Setting(
            "mlp_layer_types",
            export=lambda m: _list_mlps(m.leading_layers, m.num_layers),
            resolve=lambda types, values: (
                types
                or _list_mlps(values["first_k_dense_replace"], values["num_hidden_layers"])
            ),
            kind=[],
        ),
        Setting(
            "layer_types",
            path="pattern",
            export=write_types,
            resolve=_resolve_types,
            place=import_pattern,
            kind=[],
        ),
        *(Setting(key, default, export=lambda m: OMIT) for _, key, default in _SIZES),
        Setting(
            "linear_attn_config",
            path="mixers.delta",
            export=_write_delta,
            resolve=_resolve_delta,
            place=_import_delta,
            kind={"full_attn_layers": [], "kda_layers": []} | {key: 1 for key, _, _ in _SIZES},
        ),
        # transformers ignores these keys; the publisher's code has other defaults.
        Setting("mla_use_nope", True),
        Setting("moe_router_activation_func", "sigmoid"),
        Setting("tie_word_embeddings", False),  # the class has an own head in any case
        without=("rope_theta", "rope_scaling", "rope_interleave"),
        hidden_size=2_304,
        intermediate_size=9_216,
        moe_intermediate_size=1_024,
        num_hidden_layers=27,
        num_attention_heads=32,
        q_lora_rank=None,
        num_experts=256,
        num_expert_group=1,
        topk_group=1,
        routed_scaling_factor=2.446,
        rms_norm_eps=1e-5,
    ),
    training=_rename_keys(DEEPSEEK_V3.training[:-1]),  # without multi-token prediction
    fixed=DEEPSEEK_V3.fixed
    | {"positions._target_": "components.model.positions.Positions", "tied_embeddings": False},
    requirements=(
        *DEEPSEEK_V3.requirements,
        Requirement(
            "pattern",
            "layers have latent attention or Kimi delta attention with the model's norm, where "
            "keys, values and gate_rank have one width",
            _is_kimi,
        ),
    ),
    accepted={"moe_layer_freq": 1, "use_grouped_topk": True, "num_nextn_predict_layers": 0},
    # The class does not rotate, and computes the widths of heads.
    ignored=frozenset({
        *("rope_theta", "rope_scaling", "rope_parameters", "head_dim", "qk_head_dim"),
        "output_router_logits",
    }),
    normalize_config=dict,
    normalize_name=lambda name: _DENSE.sub(".mlp", name),
    check_config=lambda config: None,
    layer_weights=with_prefix(
        "layers.{layer}.",
        "model.layers.{layer}.",
        (
            *of_attention(map_norm("attention_norm", "input_layernorm")),
            *of_attention(row._replace(transform=RENAME) for row in LATENT_ATTENTION),
            *map_norm("mixer_norm", "input_layernorm", applies=has_mixer),
            *(
                map_weight(f"mixer.{ours}", f"self_attn.{theirs}", transform, has_mixer)
                for ours, theirs, transform in _MIXER
            ),
            *map_norm("mlp_norm", "post_attention_layernorm"),
            *sparse_mlp("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
        ),
    ),
    mtp_weights=(),
    ignores_more_layers=False,
)

FAMILIES = (KIMI_LINEAR,)
