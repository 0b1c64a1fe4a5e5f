"""GPT-2, and Bloom, https://arxiv.org/abs/2211.05100."""

from dataclasses import replace

from components.convert.hf_family import (
    ANY,
    CONTEXT_TOKENS,
    SAME_NORM,
    DerivedValue,
    HFFamily,
    Setting,
)
from components.convert.llama import HEAD_DIM, INITIALIZER_RANGE, MLP
from components.convert.param_mapping import (
    CONCAT_QKV,
    CONCAT_QKV_TRANSPOSE,
    MEGATRON_LAYER,
    QKV,
    TRANSPOSE,
    has_own_head,
    map_linear,
    map_norm,
    map_vocabulary,
    map_weight,
    with_prefix,
)

_ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu_squared": "relu2",
}
# Other names of the same activations.
_SPELLINGS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# Learned positions, LayerNorm, a plain MLP, biases. Weights are stored transposed.
GPT2 = HFFamily(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    settings=(
        Setting("n_embd", 768, "dim"),
        Setting(
            "n_inner",
            path="mlp.ffn_dim",
            resolve=lambda ffn_dim, values: ffn_dim or 4 * values["n_embd"],
        ),
        Setting("n_layer", 12, "num_layers"),
        Setting("n_head", 12, "attention.num_heads"),
        Setting("n_positions", 1_024, "positions.num_positions"),
        Setting(
            "activation_function",
            "gelu_new",
            "mlp.activation",
            _ACTIVATIONS,
            resolve=lambda name, _: _SPELLINGS.get(name, name),
        ),
        Setting("layer_norm_epsilon", 1e-5, "norm.eps"),
        Setting("scale_attn_weights", True),
        Setting("scale_attn_by_inverse_layer_idx", False),
        Setting("tie_word_embeddings", True, "tied_embeddings"),
    ),
    training=(
        Setting("n_ctx", CONTEXT_TOKENS, kind=ANY),  # read by old versions only
        Setting("resid_pdrop", 0.1, "dropout"),
        Setting("embd_pdrop", 0.1, "dropout"),
        Setting("attn_pdrop", 0.1, "attention.dropout"),
        INITIALIZER_RANGE,
    ),
    fixed={
        "positions._target_": "components.model.positions.Learned",
        "norm.center": True,
        "norm.bias": True,
        "attention.num_kv_heads": DerivedValue(
            "attention.num_heads", lambda get: get("attention.num_heads")
        ),
        "attention.head_dim": HEAD_DIM,
        "attention.bias": True,
        "mlp.gated": False,
        "mlp.bias": True,
    },
    imported={"mlp._target_": MLP, "initialization.residual": "plain"},
    # Settings in old files, mostly of a classification head.
    ignored=frozenset({
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "reorder_and_upcast_attn"),
        *("n_special", "predict_special_tokens"),
    }),
    first_weights=(
        map_vocabulary("embedding.weight", "transformer.wte.weight"),
        map_weight("positions.weight", "transformer.wpe.weight"),
    ),
    layer_weights=with_prefix(
        "layers.{layer}.",
        "transformer.h.{layer}.",
        (
            *map_norm("attention_norm", "ln_1"),
            *map_linear(QKV, "attn.c_attn", CONCAT_QKV_TRANSPOSE, CONCAT_QKV),
            *map_linear("attention.output", "attn.c_proj", TRANSPOSE),
            *map_norm("mlp_norm", "ln_2"),
            *map_linear("mlp.up", "mlp.c_fc", TRANSPOSE),
            *map_linear("mlp.down", "mlp.c_proj", TRANSPOSE),
        ),
    ),
    last_weights=(
        *map_norm("final_norm", "transformer.ln_f"),
        map_vocabulary("head.weight", "lm_head.weight", has_own_head),
    ),
    weight_prefix="transformer.",
    ignored_weights=r"attn\.(masked_)?bias$",
)

# ALiBi, and a norm after the embedding. Query, key and value are one matrix, head by head.
BLOOM = replace(
    GPT2,
    model_type="bloom",
    architecture="BloomForCausalLM",
    settings=(
        Setting("hidden_size", 64, "dim", spellings=("n_embed", "hidden_size")),
        Setting("n_layer", 2, "num_layers", spellings=("n_layer", "num_hidden_layers")),
        Setting(
            "n_head", 8, "attention.num_heads", spellings=("n_head", "num_attention_heads")
        ),
        Setting("layer_norm_epsilon", 1e-5, "norm.eps"),
        Setting("apply_residual_connection_post_layernorm", False),
        Setting("tie_word_embeddings", True, "tied_embeddings"),
    ),
    training=(
        Setting("seq_length", CONTEXT_TOKENS, kind=ANY),  # informative: ALiBi has no limit
        Setting("hidden_dropout", 0.0, "dropout"),
        Setting("attention_dropout", 0.0, "attention.dropout"),
        INITIALIZER_RANGE,
        Setting("pretraining_tp", 1, kind=ANY),
        Setting("slow_but_exact", False, kind=ANY),
    ),
    fixed=GPT2.fixed
    | {
        "positions._target_": "components.model.positions.Alibi",
        "embedding_norm": SAME_NORM,
        "mlp.ffn_dim": DerivedValue("4 x dim", lambda get: 4 * get("dim")),
        "mlp.activation": "gelu_tanh",
    },
    # Settings of kernels and the cache, and arguments of Megatron.
    ignored=frozenset({
        *("masked_softmax_fusion", "bias_dropout_fusion", "attention_softmax_in_fp32"),
        *("skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
    }),
    first_weights=(
        map_vocabulary("embedding.weight", "transformer.word_embeddings.weight"),
        *map_norm("embedding_norm", "transformer.word_embeddings_layernorm"),
    ),
    layer_weights=with_prefix("layers.{layer}.", "transformer.h.{layer}.", MEGATRON_LAYER),
    ignored_weights=r"self_attention\.(masked_)?bias$",
)

FAMILIES = (BLOOM, GPT2)
