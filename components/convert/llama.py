"""Llama, and related families that differ in norms, rotations or the MLP.

OLMo is the first release of github.com/allenai/OLMo; OLMo-2 is https://arxiv.org/abs/2501.00656,
Qwen3 https://arxiv.org/abs/2505.09388, SmolLM3 https://huggingface.co/blog/smollm3, Apertus
https://arxiv.org/abs/2509.14233, nanochat https://github.com/karpathy/nanochat, and opensci the
reference models of OpenEuroLLM and LAION, https://arxiv.org/abs/2509.09009. Keys and defaults
are from ``transformers``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.convert.hf_family import (
    CONTEXT_TOKENS,
    SAME_NORM,
    DerivedValue,
    HFConfig,
    HFFamily,
    Setting,
    change_settings,
    require_value,
)
from components.convert.param_mapping import (
    RENAME,
    Condition,
    Transform,
    Weights,
    applies_always,
    feature_condition,
    has_own_head,
    map_linear,
    map_norm,
    map_vocabulary,
    map_weight,
    swap_halves,
    with_prefix,
)
from components.convert.rotations import (
    ROPE_SCALING,
    check_rotation,
    flatten_rotation,
    resolve_scaling,
    rope_theta,
)
from components.model.mlp import XIELU

ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu_squared": "relu2",
}
MLP = "components.model.mlp.MLP"
HEAD_DIM = DerivedValue(
    "dim / attention.num_heads", lambda get: get("dim") // get("attention.num_heads")
)
EACH_HEAD = {"attention.qk_norm": SAME_NORM, "attention.qk_norm_over": "each_head"}
ALL_HEADS = require_value("attention.qk_norm_over", "all_heads")
NO_WINDOW = Setting("use_sliding_window", False)
INITIALIZER_RANGE = Setting(
    "initializer_range",
    0.02,
    "initialization.std",
    export=lambda m: m.initialization.initializer_range,
)
# Window size and first layer with a window, which have no effect without windows.
WINDOW_KEYS = frozenset({"sliding_window", "max_window_layers"})


def default_to_heads(count: Any, values: HFConfig) -> Any:
    """Return a number of heads; null or 0 means the number of query heads."""
    return count or values["num_attention_heads"]


def divide_width(head_dim: Any, values: HFConfig) -> Any:
    """Return the width of a head; null means the model's width divided by the heads."""
    return head_dim or values["hidden_size"] // values["num_attention_heads"]


def rms_norm_node(eps: float) -> dict[str, Any]:
    """Return the node of an RMSNorm with a weight, which is not the model's norm."""
    node = {"_target_": "components.model.norms.Norm", "_partial_": True, "eps": eps}
    return node | {"center": False, "weight": True, "bias": False}


QKVO = (
    *map_linear("attention.query", "self_attn.q_proj"),
    *map_linear("attention.key", "self_attn.k_proj"),
    *map_linear("attention.value", "self_attn.v_proj"),
    *map_linear("attention.output", "self_attn.o_proj"),
)


def gated_mlp(applies: Condition = applies_always) -> Weights:
    """Return the table rows of a gated MLP."""
    return (
        *map_linear("mlp.gate", "mlp.gate_proj", applies=applies),
        *map_linear("mlp.up", "mlp.up_proj", applies=applies),
        *map_linear("mlp.down", "mlp.down_proj", applies=applies),
    )


def llama_layer(
    *,
    attention: Weights = QKVO,
    mlp: Weights | None = None,
    attention_norm: str = "input_layernorm",
    mlp_norm: str = "post_attention_layernorm",
    qk_norm: str = "norm",
    norm_transform: Transform = RENAME,
) -> Weights:
    """Return the table rows of a layer with Llama's names, or other names for some parts."""
    query, key = (
        map_weight(
            f"attention.{ours}_norm.weight",
            f"self_attn.{theirs}_{qk_norm}.weight",
            norm_transform,
            feature_condition("attention.qk_norm.weight"),
        )
        for ours, theirs in (("query", "q"), ("key", "k"))
    )
    rows = (
        *map_norm("attention_norm", attention_norm, norm_transform),
        *attention,
        *(query, key),
        *map_norm("mlp_norm", mlp_norm, norm_transform),
        *(gated_mlp() if mlp is None else mlp),
    )
    return with_prefix("layers.{layer}.", "model.layers.{layer}.", rows)


LLAMA = HFFamily(
    model_type="llama",
    architecture="LlamaForCausalLM",
    settings=(
        Setting("hidden_size", 4_096, "dim"),
        Setting("intermediate_size", 11_008, "mlp.ffn_dim"),
        Setting("num_hidden_layers", 32, "num_layers"),
        Setting("num_attention_heads", 32, "attention.num_heads"),
        Setting("num_key_value_heads", path="attention.num_kv_heads", resolve=default_to_heads),
        Setting("head_dim", path="attention.head_dim", resolve=divide_width, kind=None),
        Setting("hidden_act", "silu", "mlp.activation", ACTIVATIONS),
        Setting("attention_bias", False, "attention.bias"),
        Setting("mlp_bias", False, "mlp.bias"),
        Setting("rms_norm_eps", 1e-6, "norm.eps"),
        rope_theta(10_000.0),
        ROPE_SCALING,
        Setting("tie_word_embeddings", False, "tied_embeddings"),
    ),
    training=(
        Setting("max_position_embeddings", path=CONTEXT_TOKENS),
        Setting("attention_dropout", 0.0, "attention.dropout"),
        INITIALIZER_RANGE,
    ),
    fixed={"positions._target_": "components.model.positions.Rotary", "mlp.gated": True},
    imported={"mlp._target_": MLP, "initialization.residual": "plain"},
    normalize_config=flatten_rotation,
    check_config=check_rotation,
    first_weights=(map_vocabulary("embedding.weight", "model.embed_tokens.weight"),),
    layer_weights=llama_layer(),
    last_weights=(
        *map_norm("final_norm", "model.norm"),
        map_vocabulary("head.weight", "lm_head.weight", has_own_head),
    ),
    weight_prefix="model.",
    ignored_weights=r"rotary_emb\.inv_freq$",
)
# Llama without keys for the head width and MLP biases.
PLAIN_SETTINGS = change_settings(LLAMA.settings, without=("head_dim", "mlp_bias"))
PLAIN_FIXED = {**LLAMA.fixed, "attention.head_dim": HEAD_DIM, "mlp.bias": False}
CLIP_QKV = Setting("clip_qkv", None)

OLMO = replace(  # LayerNorm without parameters; its eps is hard-coded in the class
    LLAMA,
    model_type="olmo",
    architecture="OlmoForCausalLM",
    settings=change_settings(PLAIN_SETTINGS, CLIP_QKV, without=("rms_norm_eps",)),
    fixed=PLAIN_FIXED | {"norm.eps": 1e-5, "norm.center": True, "norm.weight": False},
)

OLMO2 = replace(  # norms after attention and MLP, and over all queries and all keys
    LLAMA,
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    settings=change_settings(PLAIN_SETTINGS, rms_norm_eps=1e-5),
    fixed=PLAIN_FIXED | {"norm_placement": "after", "attention.qk_norm": SAME_NORM},
    requirements=(ALL_HEADS,),
    layer_weights=llama_layer(
        attention_norm="post_attention_layernorm", mlp_norm="post_feedforward_layernorm"
    ),
)

QWEN3 = replace(  # queries and keys are normalized per head
    LLAMA,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        NO_WINDOW,
        without=("mlp_bias",),
        intermediate_size=22_016,
        num_key_value_heads=32,
        head_dim=128,
    ),
    fixed=LLAMA.fixed | EACH_HEAD | {"mlp.bias": False},
    ignored=WINDOW_KEYS,
)

OPENSCI = replace(  # Qwen3 with biases in all linear layers; its class is on the hub
    LLAMA,
    model_type="opensci",
    architecture="OpensciForCausalLM",
    fixed=LLAMA.fixed | EACH_HEAD,
    requirements=(require_value("mlp.bias", True),),
    accepted={"qk_layernorm": True},
    layer_weights=llama_layer(qk_norm="layernorm"),
)


def _rotating_layers(num_layers: int, skip_every: int) -> list[int]:
    return [int((layer + 1) % skip_every != 0) for layer in range(num_layers)]


def _resolve_rotating(rotating: list[int] | None, values: HFConfig) -> list[int]:
    """Return whether each layer rotates. The file's list may be longer than the model."""
    layers, skip_every = values["num_hidden_layers"], values.get("no_rope_layer_interval", 4)
    return (rotating or _rotating_layers(layers, skip_every))[:layers]


def _find_skip_every(rotating: list[int], _: HFConfig) -> int:
    # The later comparison of the whole list detects lists without an interval.
    return rotating.index(0) + 1 if 0 in rotating else len(rotating) + 1


SMOLLM3 = replace(  # every n-th layer has no rotation
    LLAMA,
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        rope_theta(2_000_000.0),
        Setting(
            "no_rope_layers",
            path="positions.skip_every",
            export=lambda m: _rotating_layers(m.num_layers, m.positions.skip_every or 1),
            resolve=_resolve_rotating,
            place=_find_skip_every,
            kind=[],
        ),
        NO_WINDOW,
        without=("head_dim",),
        hidden_size=2_048,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    ),
    fixed=LLAMA.fixed
    | {
        "positions._target_": "components.model.positions.InterleavedRotary",
        "attention.head_dim": HEAD_DIM,
    },
    ignored=WINDOW_KEYS | {"no_rope_layer_interval"},
)

_UNSCALED = {"rope_type": "default"}
# The class scales the rotation by default if the key is missing, and since transformers 5 also
# if it is null, so the type is always written.
_APERTUS_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8_192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _with_constants(scalars: Sequence[Tensor]) -> Sequence[Tensor]:
    beta, eps = (scalars[0].new_tensor(value) for value in (XIELU.BETA, XIELU.EPS))
    return [*scalars, beta, eps]


def _plain_mlp(up: str, down: str) -> Weights:
    return (*map_linear("mlp.up", f"mlp.{up}"), *map_linear("mlp.down", f"mlp.{down}"))


APERTUS = replace(  # xIELU without a gate; queries and keys are normalized per head
    LLAMA,
    model_type="apertus",
    architecture="ApertusForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting("hidden_act", "xielu", "mlp.activation", {"xielu": "xielu"}),
        rope_theta(12_000_000.0),
        ROPE_SCALING._replace(
            default=_APERTUS_SCALING,
            export=lambda m: ROPE_SCALING.export_setting(m) or _UNSCALED,
            resolve=lambda value, values: resolve_scaling(value, values) or _UNSCALED,
        ),
        Setting("qk_norm", True),
        Setting("post_norm", False),
        without=("head_dim",),
        intermediate_size=14_336,
        rms_norm_eps=1e-5,
    ),
    fixed=LLAMA.fixed | EACH_HEAD | {"attention.head_dim": HEAD_DIM, "mlp.gated": False},
    requirements=(require_value("mlp.bias", False),),
    layer_weights=llama_layer(
        attention_norm="attention_layernorm",
        mlp_norm="feedforward_layernorm",
        mlp=(
            *_plain_mlp("up_proj", "down_proj"),
            map_weight(  # the class stores its constants as buffers
                tuple(f"mlp.activation.{name}" for name in XIELU.starts),
                tuple(f"mlp.act_fn.{name}" for name in (*XIELU.starts, "beta", "eps")),
                Transform(_with_constants, lambda tensors: tensors[: len(XIELU.starts)]),
            ),
        ),
    ),
)


def _swapped(ours: str, theirs: str, swap: Callable[[DecoderSpec], Transform]) -> Weights:
    return map_linear(f"attention.{ours}", f"self_attn.{theirs}", swap, swap)


# Norms, including the embedding norm, have no parameters. The MLP has two matrices, and logits
# are capped. The class rotates the two halves of a head in the opposite direction to Llama, so
# the halves are swapped in its folders. It normalizes queries and keys after the rotation. This
# is equivalent: a rotation does not change a head's length.
NANOCHAT = replace(
    LLAMA,
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    settings=change_settings(
        PLAIN_SETTINGS,
        Setting("final_logit_softcapping", 15.0, "logit_cap", kind=None),
        hidden_size=768,
        intermediate_size=8_192,
        num_hidden_layers=12,
        num_attention_heads=6,
        hidden_act="relu2",
    ),
    fixed=PLAIN_FIXED
    | EACH_HEAD
    | {"norm.weight": False, "embedding_norm": SAME_NORM, "mlp.gated": False},
    layer_weights=llama_layer(
        attention=(
            *_swapped("query", "q_proj", lambda m: swap_halves(m.attention.num_heads)),
            *_swapped("key", "k_proj", lambda m: swap_halves(m.attention.num_kv_heads)),
            *QKVO[4:],
        ),
        mlp=_plain_mlp("fc1", "fc2"),
    ),
)

FAMILIES = (LLAMA, OLMO, OLMO2, QWEN3, OPENSCI, SMOLLM3, APERTUS, NANOCHAT)
