"""Slowed rotations are those of ``transformers``, with the numbers of published models."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from components.errors import RecipeError
from components.model.positions import Rotary
from components.model.rotary_scaling import (
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
)

PLACES = torch.arange(40_000, 40_050)
# As Apertus trains from its first step, and as OLMo-3 does in its last stage.
LLAMA3 = Llama3Scaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_tokens=8_192
)
YARN = YarnScaling(factor=8.0, original_tokens=8_192, beta_fast=32.0, beta_slow=1.0)
ORIGINAL = {"original_max_position_embeddings": 8_192}
CASES: dict[str, tuple[Scaling, dict[str, float]]] = {
    "linear": (LinearScaling(factor=8.0), {}),
    "llama3": (LLAMA3, {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}),
    "yarn": (YARN, {"beta_fast": 32.0, "beta_slow": 1.0, **ORIGINAL}),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_turns_as_theirs_does(kind: str) -> None:
    scaling, numbers = CASES[kind]
    parameters = {"rope_type": kind, "rope_theta": 500_000.0, "factor": 8.0, **numbers}
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        rope_parameters=parameters,
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    angles = torch.outer(PLACES.float(), frequencies).repeat(1, 2)
    rotary = Rotary(dim=256, num_heads=2, head_dim=128, base=500_000.0, scaling=scaling)
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


def test_turns_of_slow_pairs_are_fewer_than_those_of_fast_ones() -> None:
    with pytest.raises(RecipeError, match=r"4\.0 is not below 4\.0") as caught:
        Llama3Scaling(
            factor=8.0, low_frequency_factor=4.0, high_frequency_factor=4.0, original_tokens=8
        )
    assert caught.value.path == "model.positions.scaling.low_frequency_factor"
