"""Linear mixers, against the published classes of transformers with the same weights."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    FalconH1Config,
    KimiLinearConfig,
    Mamba2Config,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3NextConfig,
)
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from components.config.model_spec.mixers import MixerSpec
from tests.components.model.comparison import relative_difference
from tests.components.model.mixers.builders import (
    DIM,
    LENGTH,
    build_mixer,
    build_scope,
    delta_spec,
    kimi_spec,
    mamba_spec,
)

TOLERANCE = 1e-5
State = Mapping[str, Tensor]


def delta_state(ours: State) -> dict[str, Tensor]:
    names = ("query", "key", "value", "decay", "step", "gate", "output")
    maps = dict(zip("qkvabgo", names, strict=True))
    return {
        **{f"{theirs}_proj.weight": ours[f"{name}.weight"] for theirs, name in maps.items()},
        "conv1d.weight": join_taps(ours, "query", "key", "value"),
        "A_log": ours["log_decay"],
        "dt_bias": ours["step_bias"],
        "o_norm.weight": ours["norm.weight"],
    }


def join_taps(ours: State, *names: str) -> Tensor:
    return torch.cat([ours[f"{name}_conv.taps"] for name in names])[:, None]


def qwen_state(ours: State) -> dict[str, Tensor]:
    def by_group(*names: str) -> Tensor:
        rows = [ours[f"{name}.weight"].view(2, -1, DIM) for name in names]
        return torch.cat(rows, 1).flatten(0, 1)

    return {
        "in_proj_qkvz.weight": by_group("query", "key", "value", "gate"),
        "in_proj_ba.weight": by_group("step", "decay"),
        "conv1d.weight": join_taps(ours, "query", "key", "value"),
        "A_log": ours["log_decay"],
        "dt_bias": ours["step_bias"],
        "norm.weight": ours["norm.weight"],
        "out_proj.weight": ours["output.weight"],
    }


def kimi_state(ours: State) -> dict[str, Tensor]:
    maps = {"q": "query", "k": "key", "v": "value", "b": "step", "o": "output"}
    maps |= {"g_a": "gate_down", "g_b": "gate"}
    return {
        **{f"{theirs}_proj.weight": ours[f"{name}.weight"] for theirs, name in maps.items()},
        "forget_gate.f_a_proj.weight": ours["decay_down.weight"],
        "forget_gate.f_b_proj.weight": ours["decay.weight"],
        "forget_gate.A_log": ours["log_decay"].view(1, 1, -1, 1),
        "forget_gate.dt_bias": ours["step_bias"],
        "conv1d.weight": join_taps(ours, "query", "key", "value"),
        "o_norm.weight": ours["norm.weight"],
    }


def mamba_state(ours: State) -> dict[str, Tensor]:
    inputs = [ours[f"{name}.weight"] for name in ("gate", "value", "key", "query", "step")]
    theirs = {
        "in_proj.weight": torch.cat(inputs),
        "conv1d.weight": join_taps(ours, "value", "key", "query"),
        "conv1d.bias": torch.cat([
            ours[f"{name}_conv.bias"] for name in ("value", "key", "query")
        ]),
        "A_log": ours["log_decay"],
        "dt_bias": ours["step_bias"],
        "D": ours["skip"],
        "out_proj.weight": ours["output.weight"],
    }
    return theirs | ({"norm.weight": ours["norm.weight"]} if "norm.weight" in ours else {})


def build_olmo(**changes: Any) -> nn.Module:
    settings: dict[str, Any] = {"linear_key_head_dim": 6, "linear_value_head_dim": 10}
    settings |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    config = OlmoHybridConfig(hidden_size=DIM, num_attention_heads=4, **settings | changes)
    return OlmoHybridGatedDeltaNet(config, 0)


def build_qwen() -> nn.Module:
    settings: dict[str, Any] = {"linear_key_head_dim": 6, "linear_value_head_dim": 10}
    settings |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "rms_norm_eps": 1e-5}
    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=DIM, **settings), 0)


def build_kimi() -> nn.Module:
    settings: dict[str, Any] = {"linear_num_heads": 4, "linear_head_dim": 6}
    settings |= {"rms_norm_eps": 1e-5, "linear_conv_kernel_dim": 4}
    return KimiLinearDeltaAttention(KimiLinearConfig(hidden_size=DIM, **settings), 0)


def build_mamba() -> nn.Module:
    sizes: dict[str, Any] = {"num_heads": 4, "head_dim": 12, "state_size": 6, "n_groups": 2}
    return Mamba2Mixer(Mamba2Config(hidden_size=DIM, expand=2, chunk_size=32, **sizes), 0)


def build_nemotron() -> nn.Module:
    sizes: dict[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 12, "n_groups": 2}
    sizes |= {"ssm_state_size": 6, "chunk_size": 32, "layer_norm_epsilon": 1e-5}
    config = NemotronHConfig(hidden_size=DIM, **sizes)
    return NemotronHMamba2Mixer(config, 0)


def build_falcon(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2}
    sizes |= {"mamba_d_state": 6, "mamba_chunk_size": 32, "mamba_d_ssm": 48}
    config = FalconH1Config(hidden_size=DIM, rms_norm_eps=1e-5, **sizes | changes)
    mixer: Any = FalconH1Mixer(config, 0)
    mixer.mup_vector = 1.0
    return cast("nn.Module", mixer)


CASES: dict[str, tuple[MixerSpec, Any, Any]] = {
    "olmo": (delta_spec(negative_eigenvalues=True), build_olmo, delta_state),
    "olmo positive": (
        delta_spec(),
        lambda: build_olmo(linear_allow_neg_eigval=False),
        delta_state,
    ),
    "qwen": (delta_spec(), build_qwen, qwen_state),
    "kimi": (kimi_spec(), build_kimi, kimi_state),
    "mamba": (mamba_spec(), build_mamba, mamba_state),
    "nemotron": (mamba_spec(step_limits=(0.001, None)), build_nemotron, mamba_state),
    "falcon": (mamba_spec(norm=None), lambda: build_falcon(mamba_rms_norm=False), mamba_state),
    "falcon norm": (
        mamba_spec(norm_before_gate=True),
        lambda: build_falcon(mamba_rms_norm=True, mamba_norm_before_gate=True),
        mamba_state,
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_mixer_equals_published_class(case: str) -> None:
    spec, build, convert = CASES[case]
    ours, theirs = build_mixer(spec), build().eval()
    theirs.load_state_dict(convert(ours.state_dict()))
    hidden = torch.randn(2, LENGTH, DIM)
    expected = theirs(hidden)
    found = ours(hidden, build_scope())
    assert relative_difference(found, expected) < TOLERANCE
