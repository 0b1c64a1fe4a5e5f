"""Small linear mixers with drawn weights, and their contexts."""

from typing import Any

import torch
from torch import Tensor

from components.config.model_spec.mixers import (
    GatedDeltaNetSpec,
    KimiDeltaSpec,
    Mamba2Spec,
    MixerSpec,
)
from components.config.model_spec.norms import NormSpec
from components.model.attention import AttentionContext
from components.model.positions import PositionEncoding

DIM, LENGTH = 24, 150  # not a multiple of a chunk
NORM = NormSpec(eps=1e-5, center=False, weight=True, bias=False)
SIZES: dict[str, Any] = {"num_heads": 4, "key_dim": 6, "conv_size": 4, "norm": NORM}


def delta_spec(**changes: Any) -> GatedDeltaNetSpec:
    return GatedDeltaNetSpec(**SIZES | {"num_key_heads": 2, "value_dim": 10} | changes)


def kimi_spec(**changes: Any) -> KimiDeltaSpec:
    return KimiDeltaSpec(**SIZES | {"value_dim": 6, "gate_rank": 6} | changes)


def mamba_spec(**changes: Any) -> Mamba2Spec:
    settings = {"num_key_heads": 2, "value_dim": 12, "conv_bias": True}
    return Mamba2Spec(**SIZES | settings | changes)


SPECS = (delta_spec(), kimi_spec(), mamba_spec())


def build_mixer(spec: MixerSpec) -> Any:
    torch.manual_seed(0)
    mixer = spec.build_part(dim=DIM)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.3)
    return mixer


def build_scope(documents: Tensor | None = None, length: int = LENGTH) -> AttentionContext:
    encoding = PositionEncoding(position_ids=torch.arange(length))
    return AttentionContext(encoding=encoding, documents=documents)
