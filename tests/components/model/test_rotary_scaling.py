"""Scaled rotations equal ``transformers``, with the numbers of published models."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from components.config.model_spec.positions import RotarySpec
from components.config.model_spec.rotary_scaling import (
    LinearScalingSpec,
    Llama3ScalingSpec,
    ScalingSpec,
    YarnScalingSpec,
)
from components.model.positions import Rotary

PLACES = torch.arange(40_000, 40_050)
# Apertus trains with these from its first step, OLMo-3 in its last stage.
LLAMA3 = Llama3ScalingSpec(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_tokens=8_192
)
YARN = YarnScalingSpec(factor=8.0, original_tokens=8_192, beta_fast=32.0, beta_slow=1.0)
ORIGINAL = {"original_max_position_embeddings": 8_192}
CASES: dict[str, tuple[ScalingSpec, dict[str, float]]] = {
    "linear": (LinearScalingSpec(factor=8.0), {}),
    "llama3": (LLAMA3, {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}),
    "yarn": (YARN, {"beta_fast": 32.0, "beta_slow": 1.0, **ORIGINAL}),
}


@pytest.mark.parametrize("kind", CASES)
def test_scaled_rotations_equal_transformers(kind: str) -> None:
    spec, numbers = CASES[kind]
    scaling = spec.build_part()
    parameters = {"rope_type": kind, "rope_theta": 500_000.0, "factor": 8.0, **numbers}
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        rope_parameters=parameters,
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    angles = torch.outer(PLACES.float(), frequencies).repeat(1, 2)
    rotary = Rotary(
        RotarySpec(base=500_000.0, scaling=spec), dim=256, num_heads=2, head_dim=128
    )
    rotation = rotary(PLACES).rotation
    assert rotation is not None
    torch.testing.assert_close(
        rotation.cos[:, 0], angles.cos() * magnitude, atol=5e-3, rtol=0.0
    )
    plain = 500_000.0 ** (-torch.arange(0, 128, 2) / 128)
    found = scaling(plain, base=500_000.0)
    torch.testing.assert_close(found, frequencies, rtol=1e-6, atol=0.0)
    assert not torch.allclose(found, plain)
    assert scaling.magnitude == pytest.approx(magnitude)
