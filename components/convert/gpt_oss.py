"""gpt-oss: experts with biases and a clamped SwiGLU, attention with sinks and windows.

https://arxiv.org/abs/2508.10925; keys and defaults are from ``transformers``. Folders with
4-bit weights (MXFP4) are not read.
"""

from dataclasses import replace
from functools import partial

import torch

from components.config.model_spec.decoder import DecoderSpec
from components.convert.experts import EXPERTS, OLMOE
from components.convert.hf_family import Requirement, Setting, change_settings, require_value
from components.convert.llama import LLAMA, QKVO, llama_layer
from components.convert.param_mapping import Transform, map_weight
from components.convert.rotations import rope_theta
from components.convert.windowed import (
    LAYER_TYPES,
    ONE_WINDOW,
    SLIDING_WINDOW,
    resolve_layer_types,
)

_EVERY = 2  # the class's interval of layers without a window

# Gate and up projections alternate in the last dimension of one stack, whose matrices are
# transposed.
_INTERLEAVE = Transform(
    to_theirs=lambda tensors: [torch.stack(list(tensors), 2).flatten(1, 2).mT],
    to_ours=lambda tensors: (tensors[0].mT[:, ::2], tensors[0].mT[:, 1::2]),
)
_TRANSPOSE_EACH = Transform(
    to_theirs=lambda tensors: [tensors[0].mT], to_ours=lambda tensors: [tensors[0].mT]
)


def _split_biases(features: DecoderSpec) -> Transform:
    """Return the transform between vectors of all experts' biases and alternating rows."""
    experts = features.mlp.num_experts or 1
    return Transform(
        lambda tensors: [
            torch.stack([each.view(experts, -1) for each in tensors], 2).flatten(1)
        ],
        lambda tensors: (tensors[0][:, ::2].flatten(), tensors[0][:, 1::2].flatten()),
    )


def _divide_bias(features: DecoderSpec) -> Transform:
    """Return the transform between a vector of all experts' biases and a row per expert."""
    experts = features.mlp.num_experts or 1
    return Transform(
        lambda tensors: [tensors[0].view(experts, -1)], lambda tensors: [tensors[0].flatten()]
    )


_EXPERTS = "mlp.experts"
_MLP = (
    map_weight("mlp.router.weight", "mlp.router.weight"),
    map_weight("mlp.router.bias", "mlp.router.bias"),
    map_weight(("mlp.gate.weight", "mlp.up.weight"), f"{_EXPERTS}.gate_up_proj", _INTERLEAVE),
    map_weight(
        ("mlp.gate.bias", "mlp.up.bias"), f"{_EXPERTS}.gate_up_proj_bias", _split_biases
    ),
    map_weight("mlp.down.weight", f"{_EXPERTS}.down_proj", _TRANSPOSE_EACH),
    map_weight("mlp.down.bias", f"{_EXPERTS}.down_proj_bias", _divide_bias),
)

GPT_OSS = replace(
    LLAMA,
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    settings=change_settings(
        LLAMA.settings,
        Setting("num_key_value_heads", 8, "attention.num_kv_heads"),
        Setting("hidden_act", "silu"),
        Setting(
            "num_local_experts",
            128,
            "mlp.num_experts",
            spellings=("num_local_experts", "num_experts"),
        ),
        Setting("num_experts_per_tok", 4, "mlp.top_k"),
        Setting("swiglu_alpha", 1.702, "mlp.swiglu_alpha"),
        Setting("swiglu_limit", 7.0, "mlp.swiglu_limit"),
        SLIDING_WINDOW._replace(default=128),
        LAYER_TYPES._replace(resolve=partial(resolve_layer_types, every=_EVERY)),
        rope_theta(150_000.0),
        without=("mlp_bias",),
        hidden_size=2_880,
        intermediate_size=2_880,
        num_hidden_layers=36,
        num_attention_heads=64,
        head_dim=64,
        attention_bias=True,
        rms_norm_eps=1e-5,
    ),
    training=(
        *LLAMA.training,
        Setting("router_aux_loss_coef", 0.001, "mlp.auxiliary_loss"),
        *OLMOE.training[-1:],
    ),
    fixed=LLAMA.fixed
    | {
        "attention.sinks": True,
        "mlp.activation": "silu",
        "mlp.bias": True,
        "mlp.linear_offset": 1.0,
        "mlp.renormalize": True,
        "mlp.routing": "learned",
    },
    imported=OLMOE.imported,
    requirements=(
        EXPERTS,
        ONE_WINDOW,
        require_value("positions.local_base", None),
        Requirement(
            "mlp.swiglu_limit",
            "its SwiGLU has a limit",
            lambda m: m.mlp.swiglu_limit is not None,
        ),
    ),
    # The first releases name the experts of a token twice, and the window's cache.
    ignored=frozenset({"experts_per_token", "initial_context_length"}),
    layer_weights=llama_layer(
        attention=(*QKVO, map_weight("attention.sinks", "self_attn.sinks")), mlp=_MLP
    ),
)

FAMILIES = (GPT_OSS,)
