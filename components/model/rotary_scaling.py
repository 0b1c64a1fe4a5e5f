"""Slower rotation, so that a model reads further than it was trained.

Each kind turns the frequencies of the channel pairs into slower ones. To raise the base, as
NTK-aware scaling does, no part is needed: at one length of sequence it is another ``base``.
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
    """Change the frequencies of a rotation; ``magnitude`` multiplies its cosines and sines."""

    magnitude = 1.0

    @abstractmethod
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        """Return the new frequencies, of pairs from the fastest to the slowest."""


class LinearScaling(Scaling):
    """Divide all frequencies, and with them all places, https://arxiv.org/abs/2306.15595."""

    def __init__(self, spec: LinearScalingSpec) -> None:
        self.factor = spec.factor

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        return frequencies / self.factor


class Llama3Scaling(Scaling):
    """Divide the slow frequencies, keep the fast ones, and pass between by turns.

    A pair that makes fewer than ``low_frequency_factor`` turns within ``original_tokens`` is
    slow, one that makes more than ``high_frequency_factor`` fast (Llama 3.1's own code,
    ``apply_scaling`` in github.com/meta-llama/llama-models, models/llama3/model.py).
    """

    def __init__(self, spec: Llama3ScalingSpec) -> None:
        self.factor = spec.factor
        self.low = spec.low_frequency_factor
        self.high = spec.high_frequency_factor
        self.original_tokens = spec.original_tokens

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        turns = self.original_tokens * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


class YarnScaling(Scaling):
    """Pass from kept to divided frequencies by pairs, and sharpen attention (YaRN).

    https://arxiv.org/abs/2309.00071, section 3. As in the authors' code the passage is linear
    in the number of the pair: from that which makes ``beta_fast`` turns within
    ``original_tokens`` to that which makes ``beta_slow``, both rounded outwards. The softmax's
    temperature is in the rotation.
    """

    def __init__(self, spec: YarnScalingSpec) -> None:
        factor = spec.factor
        self.factor = factor
        self.original_tokens = spec.original_tokens
        self.beta_fast = spec.beta_fast
        self.beta_slow = spec.beta_slow
        self.magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0

    @override
    def __call__(self, frequencies: Frequencies, *, base: float) -> Frequencies:
        pairs = len(frequencies)

        def pair(turns: float) -> float:
            return pairs * math.log(self.original_tokens / (2 * math.pi * turns), base)

        first = max(math.floor(pair(self.beta_fast)), 0)
        last = min(math.ceil(pair(self.beta_slow)), 2 * pairs - 1)
        place = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        divided = ((place - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        return frequencies / self.factor * divided + frequencies * (1 - divided)
