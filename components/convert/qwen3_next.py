"""Qwen3-Next: gated delta nets, gated attention, and experts with a gated shared expert.

https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Base; keys and defaults from ``transformers``.
Like Gemma 3's class (`components.convert.windowed`), the class adds 1 to the weights of all
norms, except the norm of the states of a gated delta net. It packs the maps of a gated delta
net by group of heads, and query and gate of attention by head.
"""

from dataclasses import replace

from components.config.model_spec.decoder import DecoderSpec
from components.convert.experts import EXPERTS, QWEN3_MOE, expert_weights, shared_weights
from components.convert.hf_family import (
    OMIT,
    SAME_NORM,
    HFConfig,
    Requirement,
    Section,
    Setting,
    change_settings,
)
from components.convert.hybrid import (
    DELTA_NODE,
    INTERVAL,
    KEY_HEADS,
    LAYER_TYPES,
    STATE_WEIGHTS,
    delta_net,
    has_mixer,
    map_mixer,
    mixer_setting,
    of_attention,
    only_mixer,
)
from components.convert.llama import LLAMA, QKVO, WINDOW_KEYS, llama_layer
from components.convert.param_mapping import (
    MINUS_ONE,
    Transform,
    Weights,
    interleave_blocks,
    map_linear,
    map_norm,
    map_weight,
    with_prefix,
)
from components.convert.rotations import check_rotation, flatten_rotation
from components.convert.windowed import GEMMA3

_FRACTION = "partial_rotary_factor"


def _move_fraction(config: HFConfig) -> Section:
    """Return a ``config.json`` with the older place of the rotated fraction of a head."""
    rotation = dict(config.get("rope_parameters") or {})
    fraction = {_FRACTION: rotation.pop(_FRACTION)} if _FRACTION in rotation else {}
    return {**config, **fraction, "rope_parameters": rotation}


def _rotates_pairs(features: DecoderSpec) -> bool:
    """Whether the class, which rounds down, rotates as many channels of a head."""
    width, positions = features.attention.head_dim, features.positions
    return int(width * positions.rotary_fraction) == positions.rotary_width(width)


def _is_delta(features: DecoderSpec) -> bool:
    """Whether all layers are like the class's, with the same gated delta net."""
    mixer = delta_net(features)
    return mixer is not None and mixer.norm == features.norm and not mixer.negative_eigenvalues


def _pack_gate(features: DecoderSpec) -> Transform:
    width = features.attention.head_dim
    return interleave_blocks(features.attention.num_heads, width, width)


def _pack_tokens(features: DecoderSpec) -> Transform:
    """Return the transform of queries, keys, values and gates, packed by group of heads."""
    mixer = only_mixer(features)
    assert mixer is not None
    values = mixer.value_width // mixer.key_heads
    return interleave_blocks(mixer.key_heads, mixer.key_dim, mixer.key_dim, values, values)


def _pack_steps(features: DecoderSpec) -> Transform:
    """Return the transform of step sizes and decays, packed by group of heads."""
    mixer = only_mixer(features)
    assert mixer is not None
    heads = mixer.num_heads // mixer.key_heads
    return interleave_blocks(mixer.key_heads, heads, heads)


_ATTENTION: Weights = (
    *map_linear(
        ("attention.query", "attention.gate"), "self_attn.q_proj", _pack_gate, _pack_gate
    ),
    *QKVO[2:],
)
_TOKENS = tuple(f"mixer.{name}.weight" for name in ("query", "key", "value", "gate"))
_STEPS = ("mixer.step.weight", "mixer.decay.weight")
_DELTA_LAYER: Weights = (
    *map_norm("mixer_norm", "input_layernorm", MINUS_ONE, has_mixer),
    map_weight(_TOKENS, "linear_attn.in_proj_qkvz.weight", _pack_tokens, has_mixer),
    map_weight(_STEPS, "linear_attn.in_proj_ba.weight", _pack_steps, has_mixer),
    *STATE_WEIGHTS,
    *map_mixer("norm.weight", "norm.weight"),
    *map_mixer("output.weight", "out_proj.weight"),
    *map_norm("mlp_norm", "post_attention_layernorm", MINUS_ONE, has_mixer),
)
_EXPERTS: Weights = (
    map_weight("mlp.router.weight", "mlp.gate.weight"),
    *expert_weights(),
    map_weight("mlp.shared_gate.weight", "mlp.shared_expert_gate.weight"),
    *shared_weights("mlp.shared_expert"),
)

QWEN3_NEXT = replace(
    QWEN3_MOE,
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    settings=change_settings(
        QWEN3_MOE.settings,
        # The convolutions have the same activation.
        Setting("hidden_act", "silu", "mlp.activation", {"silu": "silu"}),
        Setting("num_experts", 512, "mlp.num_experts"),
        Setting("shared_expert_intermediate_size", 512, "mlp.shared_ffn_dim"),
        Setting(_FRACTION, 0.25, "positions.rotary_fraction"),
        LAYER_TYPES,
        KEY_HEADS._replace(default=16),
        mixer_setting("linear_num_value_heads", 32, "num_heads"),
        mixer_setting("linear_key_head_dim", 128, "key_dim"),
        mixer_setting("linear_value_head_dim", 128, "value_dim"),
        mixer_setting("linear_conv_kernel_dim", 4, "conv_size"),
        without=("use_sliding_window",),
        hidden_size=2_048,
        num_hidden_layers=48,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        moe_intermediate_size=512,
        num_experts_per_tok=10,
        norm_topk_prob=True,
    ),
    training=(
        *change_settings(QWEN3_MOE.training, router_aux_loss_coef=0.001),
        # `layer_types` are written instead.
        Setting(INTERVAL, export=lambda _: OMIT, kind=1),
    ),
    fixed=QWEN3_MOE.fixed | {"attention.output_gate": True, "mlp.shared_gate": True},
    imported=QWEN3_MOE.imported | DELTA_NODE | {"mixers.delta.norm": SAME_NORM},
    requirements=(
        EXPERTS,
        Requirement(
            "positions.rotary_fraction",
            "it rotates an even number of a head's channels, without rounding up",
            _rotates_pairs,
        ),
        Requirement(
            "pattern",
            "layers have attention or a gated delta net without negative eigenvalues, with the "
            "model's norm before it and of its states",
            _is_delta,
        ),
    ),
    accepted={"use_sliding_window": False},
    ignored=WINDOW_KEYS | {"intermediate_size"},
    normalize_config=lambda config: flatten_rotation(_move_fraction(config)),
    check_config=lambda config: check_rotation(_move_fraction(config)),
    layer_weights=(
        *of_attention(llama_layer(attention=_ATTENTION, mlp=(), norm_transform=MINUS_ONE)),
        *with_prefix("layers.{layer}.", "model.layers.{layer}.", (*_DELTA_LAYER, *_EXPERTS)),
    ),
    last_weights=GEMMA3.last_weights,
    # The class ignores the published modules for further tokens, too.
    ignored_weights=rf"{LLAMA.ignored_weights}|^mtp\.",
)

FAMILIES = (QWEN3_NEXT,)
