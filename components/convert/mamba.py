"""Mamba-2 in Hugging Face classes: joint maps and convolutions, which several families have."""

import torch

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.mixers import Mamba2Spec
from components.convert.hybrid import join_taps, only_mixer
from components.convert.param_mapping import Condition, Transform, Weights, map_weight

MAMBA = "components.model.mixers.mamba2.Mamba2"
# Our names of a mixer's weights that the classes rename only.
_RENAMED = {
    "log_decay": "A_log",
    "step_bias": "dt_bias",
    "skip": "D",
    "norm.weight": "norm.weight",
    "output.weight": "out_proj.weight",
}
_INPUTS = tuple(f"mixer.{name}.weight" for name in ("gate", "value", "key", "query", "step"))
_CONVOLUTIONS = tuple(f"mixer.{name}_conv" for name in ("value", "key", "query"))


def only_mamba(features: DecoderSpec) -> Mamba2Spec:
    """Return the Mamba-2 of a model whose only linear mixer is one."""
    mixer = only_mixer(features)
    assert isinstance(mixer, Mamba2Spec), "the requirements of the class were not checked"
    return mixer


def has_mamba(features: DecoderSpec) -> bool:
    """Whether the only mixer is the classes' Mamba-2: with the model's norm after the gate."""
    mixer = only_mixer(features)
    return (
        isinstance(mixer, Mamba2Spec)
        and mixer.norm == features.norm
        and not mixer.norm_before_gate
        and mixer.norm_placement in {None, "before"}
    )


def map_mamba(theirs: str, applies: Condition) -> Weights:
    """Return the table rows of a Mamba-2; ``theirs`` is the classes' name of the mixer."""
    return (
        map_weight(_INPUTS, f"{theirs}.in_proj.weight", _join_inputs, applies),
        map_weight(
            tuple(f"{name}.taps" for name in _CONVOLUTIONS),
            f"{theirs}.conv1d.weight",
            lambda m: join_taps(_convolved_widths(m)),
            applies,
        ),
        map_weight(
            tuple(f"{name}.bias" for name in _CONVOLUTIONS),
            f"{theirs}.conv1d.bias",
            lambda m: _join_rows(_convolved_widths(m)),
            lambda m, layer: applies(m, layer) and only_mamba(m).conv_bias,
        ),
        *(
            map_weight(f"mixer.{ours}", f"{theirs}.{name}", applies=applies)
            for ours, name in _RENAMED.items()
        ),
    )


def _convolved_widths(features: DecoderSpec) -> list[int]:
    """Return the channels of values, B and C."""
    mixer = only_mamba(features)
    return [mixer.value_width, mixer.key_width, mixer.key_width]


def _join_rows(widths: list[int]) -> Transform:
    return Transform(
        lambda tensors: [torch.cat(list(tensors))],
        lambda tensors: torch.split(tensors[0], widths),
    )


def _join_inputs(features: DecoderSpec) -> Transform:
    mixer = only_mamba(features)
    widths = [mixer.value_width, *_convolved_widths(features), mixer.num_heads]
    return _join_rows(widths)
