"""Mixtures of experts: OLMoE, Qwen3-MoE and DeepSeek-V3.

OLMoE is https://arxiv.org/abs/2409.02060, Qwen3 https://arxiv.org/abs/2505.09388, DeepSeek-V3
https://arxiv.org/abs/2412.19437. Keys and defaults are from ``transformers``. Their folders
store each expert separately; the class stacks them only in memory.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.convert.hf_family import (
    ANY,
    OMIT,
    SAME_NORM,
    HFConfig,
    Requirement,
    Setting,
    change_settings,
    find_name,
    require_value,
)
from components.convert.llama import (
    ACTIVATIONS,
    ALL_HEADS,
    CLIP_QKV,
    EACH_HEAD,
    HEAD_DIM,
    LLAMA,
    MLP,
    NO_WINDOW,
    PLAIN_SETTINGS,
    WINDOW_KEYS,
    gated_mlp,
    llama_layer,
    rms_norm_node,
)
from components.convert.param_mapping import (
    UNSTACK,
    Condition,
    Transform,
    Weights,
    applies_always,
    feature_condition,
    interleave_pairs,
    map_vocabulary,
    map_weight,
    with_prefix,
)

EXPERTS = Requirement(
    "mlp.num_experts", "it is a mixture of experts", lambda m: m.mlp.num_experts is not None
)


GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def expert_weights(
    applies: Condition = applies_always,
    theirs: str = "mlp",
    names: Mapping[str, str] = MappingProxyType(GATED),
) -> Weights:
    """Return the rows of stacked expert weights; ``names`` maps our matrices to theirs."""
    return tuple(
        map_weight(
            f"mlp.{ours}.weight",
            f"{theirs}.experts.{{expert}}.{name}.weight",
            UNSTACK,
            applies,
        )
        for ours, name in names.items()
    )


def shared_weights(theirs: str, applies: Condition = applies_always) -> Weights:
    """Return the table rows of a shared expert's weights."""
    return tuple(
        map_weight(f"mlp.shared.{name}.weight", f"{theirs}.{name}_proj.weight", applies=applies)
        for name in ("gate", "up", "down")
    )


OLMOE = replace(  # queries and keys are normalized over all heads
    LLAMA,
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    settings=change_settings(
        PLAIN_SETTINGS,
        Setting("num_experts", 64, "mlp.num_experts"),
        Setting("num_experts_per_tok", 8, "mlp.top_k"),
        Setting("norm_topk_prob", False, "mlp.renormalize"),
        CLIP_QKV,
        rms_norm_eps=1e-5,
    ),
    training=(
        *LLAMA.training,
        Setting("router_aux_loss_coef", 0.01, "mlp.auxiliary_loss"),
        Setting("output_router_logits", False, kind=ANY),
    ),
    fixed=LLAMA.fixed
    | {
        "attention.head_dim": HEAD_DIM,
        "attention.qk_norm": SAME_NORM,
        "mlp.routing": "learned",
    },
    imported=LLAMA.imported
    | {
        "mlp._target_": "components.model.moe.Experts",
        "mlp.auxiliary_scope": "model",  # like its load_balancing_loss_func, over all layers
        "mlp.z_loss": 0.0,
        "mlp.path": "auto",
    },
    requirements=(EXPERTS, ALL_HEADS),
    layer_weights=llama_layer(
        mlp=(map_weight("mlp.router.weight", "mlp.gate.weight"), *expert_weights())
    ),
)

QWEN3_MOE = replace(  # experts in all layers; each head of queries and keys is normalized
    OLMOE,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting("num_key_value_heads", 4, "attention.num_kv_heads"),
        Setting("moe_intermediate_size", 768, "mlp.ffn_dim"),
        # transformers 5 has the second name.
        Setting(
            "num_experts",
            128,
            "mlp.num_experts",
            spellings=("num_local_experts", "num_experts"),
        ),
        *OLMOE.settings[-3:-1],
        Setting("decoder_sparse_step", 1),
        Setting("mlp_only_layers", [], resolve=lambda layers, _: layers or []),
        NO_WINDOW,
        without=("intermediate_size", "mlp_bias"),
        hidden_size=2_048,
        num_hidden_layers=24,
    ),
    fixed=LLAMA.fixed | EACH_HEAD | {"mlp.routing": "learned"},
    requirements=(EXPERTS,),
    # The width of dense layers and the window settings have no effect in such a model.
    ignored=WINDOW_KEYS | {"intermediate_size"},
)

_LATENT_EPS = 1e-6  # hard-coded in the class


def _has_latent_norm(features: DecoderSpec) -> bool:
    latent_norm = features.attention.latent_norm
    return (
        latent_norm is not None
        and latent_norm.norm_label == "RMSNorm with weight"
        and latent_norm.eps == _LATENT_EPS
    )


def _has_equal_dense_mlp(features: DecoderSpec) -> bool:
    dense = features.dense_mlp
    is_same = dense is None or dense.activation == features.mlp.activation
    return is_same and (dense is None or (dense.gated and not dense.bias))


def _import_dense_mlp(ffn_dim: int, values: HFConfig) -> Any:
    if not values["first_k_dense_replace"]:
        return OMIT
    activation = find_name("hidden_act", values["hidden_act"], ACTIVATIONS)
    node = {"_target_": MLP, "ffn_dim": ffn_dim, "activation": activation}
    return node | {"gated": True, "bias": False, "_partial_": True}


def _import_mtp(depth: int, _: HFConfig) -> Any:
    if not depth:
        return OMIT
    node = {"_target_": "components.model.mtp.MultiTokenPrediction", "_partial_": True}
    # The weight in most of the run: arXiv 2412.19437, section 4.2. It is not in the file.
    return node | {"loss_weight": 0.3, "depth": depth}


def _query_pairs(features: DecoderSpec) -> Transform:
    return interleave_pairs(features.attention.num_heads, features.attention.rotary_dim)


_has_query_rank = feature_condition("attention.query_rank")


def _has_no_query_rank(features: DecoderSpec, layer: int) -> bool:
    return features.attention.query_rank is None


def _is_dense(features: DecoderSpec, layer: int) -> bool:
    return layer < features.leading_layers


def _is_sparse(features: DecoderSpec, layer: int) -> bool:
    return layer >= features.leading_layers


# Published folders have rotating channels in pairs; ours have the first of each pair first.
LATENT_ATTENTION = with_prefix(
    "attention.",
    "self_attn.",
    (
        map_weight("key_value_norm.weight", "kv_a_layernorm.weight"),
        map_weight("key_value.weight", "kv_b_proj.weight"),
        map_weight("output.weight", "o_proj.weight"),
        map_weight("query_down.weight", "q_a_proj.weight", applies=_has_query_rank),
        map_weight("query_norm.weight", "q_a_layernorm.weight", applies=_has_query_rank),
        map_weight("query.weight", "q_b_proj.weight", _query_pairs, _has_query_rank),
        map_weight("query.weight", "q_proj.weight", _query_pairs, _has_no_query_rank),
        map_weight(
            "key_value_down.weight",
            "kv_a_proj_with_mqa.weight",
            lambda m: interleave_pairs(1, m.attention.rotary_dim),
        ),
    ),
)


def sparse_mlp(
    theirs: str = "mlp", names: Mapping[str, str] = MappingProxyType(GATED)
) -> Weights:
    """Return the rows of MLPs in the first layers, and of routed and shared experts after."""
    router = f"{theirs}.gate"
    return (
        *gated_mlp(_is_dense),
        map_weight("mlp.router.weight", f"{router}.weight", applies=_is_sparse),
        map_weight("mlp.choice_bias", f"{router}.e_score_correction_bias", applies=_is_sparse),
        *expert_weights(_is_sparse, theirs, names),
        *shared_weights(f"{theirs}.shared_experts", _is_sparse),
    )


_DEEPSEEK_LAYER = llama_layer(attention=LATENT_ATTENTION, mlp=sparse_mlp())
# Multi-token prediction layers follow the last layer, with the names of the published folders
# (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3). The class of ``transformers`` ignores them.
_DEEPSEEK_MTP = (
    *(
        row._replace(ours=tuple(f"mtp.{{layer}}.layer.{name[15:]}" for name in row.ours))
        for row in _DEEPSEEK_LAYER
    ),
    *with_prefix(
        "mtp.{layer}.",
        "model.layers.{layer}.",
        (
            map_weight("embedding_norm.weight", "enorm.weight"),
            map_weight("hidden_norm.weight", "hnorm.weight"),
            map_weight("projection.weight", "eh_proj.weight"),
            map_weight("final_norm.weight", "shared_head.norm.weight"),
        ),
    ),
    *(
        map_vocabulary(ours, f"model.layers.{{layer}}.{theirs}", applies)._replace(is_copy=True)
        for ours, theirs, applies in (
            ("embedding.weight", "embed_tokens.weight", applies_always),
            ("embedding.weight", "shared_head.head.weight", lambda m, _: m.tied_embeddings),
            ("head.weight", "shared_head.head.weight", lambda m, _: not m.tied_embeddings),
        )
    ),
)

# Latent attention, a shared expert, and experts chosen by sigmoids, groups and biases.
DEEPSEEK_V3 = replace(
    OLMOE,
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting("num_key_value_heads", 128, "attention.num_kv_heads"),
        Setting("q_lora_rank", 1_536, "attention.query_rank", kind=None),
        Setting("kv_lora_rank", 512, "attention.key_value_rank"),
        Setting("qk_rope_head_dim", 64, "attention.rotary_dim"),
        Setting(
            "qk_nope_head_dim",
            128,
            "attention.head_dim",
            export=lambda m: m.attention.head_dim - m.attention.rotary_dim,
            place=lambda width, values: width + values["qk_rope_head_dim"],
        ),
        Setting(
            "v_head_dim", 128, "attention.value_dim", export=lambda m: m.attention.value_width
        ),
        Setting("rope_interleave", True),
        Setting(
            "first_k_dense_replace",
            3,
            "num_dense_layers",
            export=lambda m: m.leading_layers,
            place=lambda layers, _: layers or OMIT,
            kind=0,
        ),
        Setting("moe_intermediate_size", 2_048, "mlp.ffn_dim"),
        # transformers 5 has the second name.
        Setting(
            "n_routed_experts",
            256,
            "mlp.num_experts",
            spellings=("n_routed_experts", "num_local_experts"),
        ),
        Setting(
            "n_shared_experts",
            1,
            "mlp.shared_ffn_dim",
            export=lambda m: (m.mlp.shared_ffn_dim or 0) // m.mlp.ffn_dim,
            place=lambda count, values: count * values["moe_intermediate_size"] or None,
            kind=0,
        ),
        Setting("num_experts_per_tok", 8, "mlp.top_k"),
        Setting("n_group", 8, "mlp.num_groups"),
        Setting("topk_group", 4, "mlp.top_groups"),
        Setting("norm_topk_prob", True, "mlp.renormalize"),
        Setting("routed_scaling_factor", 2.5, "mlp.weight_scale"),
        Setting(
            "intermediate_size",
            18_432,
            "dense_mlp",
            export=lambda m: OMIT if m.dense_mlp is None else m.dense_mlp.ffn_dim,
            place=_import_dense_mlp,
            kind=None,
        ),
        without=("num_key_value_heads", "head_dim", "mlp_bias", "intermediate_size"),
        hidden_size=7_168,
        num_hidden_layers=61,
        num_attention_heads=128,
    ),
    training=(
        *LLAMA.training,
        Setting(
            "num_nextn_predict_layers",
            0,
            "mtp",
            export=lambda m: m.mtp_depth,
            place=_import_mtp,
        ),
    ),
    fixed=LLAMA.fixed | {"mlp.routing": "learned", "mlp.scores": "sigmoid"},
    imported=OLMOE.imported
    | {
        "attention._target_": "components.model.latent_attention.LatentAttention",
        "attention.latent_norm": rms_norm_node(_LATENT_EPS),
        "mlp.auxiliary_loss": 0.0,
        "mlp.auxiliary_scope": "layer",
        "mlp.balance_rate": 0.001,  # arXiv 2412.19437, section 4.2; not in the file
    },
    requirements=(
        Requirement(
            "attention.key_value_rank",
            "its attention is latent, with an RMSNorm of eps 1e-6",
            _has_latent_norm,
        ),
        require_value("positions.scaling", None),
        Requirement(
            "mlp.balance_rate",
            "its router has biases",
            lambda m: m.mlp.balance_rate is not None,
        ),
        Requirement(
            "mlp.shared_ffn_dim",
            "the width of its shared expert is a multiple of an expert's width",
            lambda m: (m.mlp.shared_ffn_dim or 1) % m.mlp.ffn_dim == 0,
        ),
        Requirement(
            "dense_mlp",
            "its first layers, if any, have an MLP like its experts, without bias",
            _has_equal_dense_mlp,
        ),
        EXPERTS,
    ),
    accepted={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ignored=frozenset({"aux_loss_alpha", "seq_aux", "ep_size"}),
    layer_weights=_DEEPSEEK_LAYER,
    mtp_weights=_DEEPSEEK_MTP,
    ignores_more_layers=True,
)

FAMILIES = (OLMOE, QWEN3_MOE, DEEPSEEK_V3)
