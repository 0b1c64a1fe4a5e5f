"""RoPE scaling: lower frequencies for contexts that are longer than in training.

NTK-aware scaling needs no class here: at one sequence length it is a different ``base``.
"""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from components.config.model_spec.rotary_scaling import (
    LinearScalingSpec,
    Llama3ScalingSpec,
    YarnScalingSpec,
)

Frequencies = Float[Tensor, " pairs"]


class Scaling(ABC):
    """Scaling of RoPE frequencies; ``magnitude`` multiplies the cosines and sines."""

    magnitude = 1.0

    @abstractmethod
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        """Return the scaled frequencies of the pairs, from the highest to the lowest."""


class LinearScaling(Scaling):
    """Linear scaling (https://arxiv.org/abs/2306.15595): divides frequencies by ``factor``."""

    def __init__(self, spec: LinearScalingSpec) -> None:
        self.factor = spec.factor

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        return frequencies / self.factor


class Llama3Scaling(Scaling):
    """Llama 3 scaling: divides low frequencies, keeps high ones, interpolates in between.

    Low frequencies make fewer than ``low_frequency_factor`` turns within ``original_tokens``,
    high ones more than ``high_frequency_factor``; the interpolation is linear in the turns
    (``apply_scaling`` in github.com/meta-llama/llama-models, models/llama3/model.py).
    """

    def __init__(self, spec: Llama3ScalingSpec) -> None:
        self.factor = spec.factor
        self.low = spec.low_frequency_factor
        self.high = spec.high_frequency_factor
        self.original_tokens = spec.original_tokens

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        turns = self.original_tokens * frequencies / (2 * math.pi)
        share = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - share) * frequencies / self.factor + share * frequencies


class YarnScaling(Scaling):
    """YaRN scaling: interpolates from original to divided frequencies, and sharpens attention.

    https://arxiv.org/abs/2309.00071, section 3. As in the authors' code, the interpolation is
    linear in the index of the pair: from the pair with ``beta_fast`` turns within
    ``original_tokens`` to the pair with ``beta_slow`` turns, both rounded outwards if
    ``truncate``, otherwise places between pairs, as in gpt-oss. The
    rotation's ``magnitude`` includes the softmax temperature.
    """

    def __init__(self, spec: YarnScalingSpec) -> None:
        factor = spec.factor
        self.factor = factor
        self.original_tokens = spec.original_tokens
        self.beta_fast = spec.beta_fast
        self.beta_slow = spec.beta_slow
        self.truncate = spec.truncate
        self.magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        pairs = len(frequencies)

        def pair_of_turns(turns: float) -> float:
            return pairs * math.log(self.original_tokens / (2 * math.pi * turns), base)

        first, last = pair_of_turns(self.beta_fast), pair_of_turns(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        place = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        divided = ((place - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        return frequencies / self.factor * divided + frequencies * (1 - divided)
