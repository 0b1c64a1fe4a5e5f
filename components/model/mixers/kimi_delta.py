"""Kimi delta attention (KDA): https://arxiv.org/abs/2510.26692, section 3."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.mixers import KimiDeltaSpec
from components.model.attention import AttentionContext
from components.model.linear import Linear, as_given
from components.model.mixers.mixer import Mixer, normalize_length
from components.model.mixers.scan_kernels import KIMI_SCANS


class KimiDelta(Mixer):
    """Kimi delta attention: the delta rule with a decay per key channel, and a sigmoid gate.

    Decay: ``exp(-exp(log_decay) softplus(decay(decay_down) + step_bias))``.
    """

    scans = KIMI_SCANS

    def __init__(self, spec: KimiDeltaSpec, *, dim: int) -> None:
        super().__init__(spec, dim=dim)
        self.decay_down = Linear(dim, spec.gate_rank, bias=False)
        self.decay = Linear(spec.gate_rank, spec.key_width, bias=False)
        self.gate_down = Linear(dim, spec.gate_rank, bias=False)
        self.gate = Linear(spec.gate_rank, spec.value_width, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(spec.key_width))
        self.norm = spec.norm.build_part(dim=spec.value_dim)

    @property
    @override
    def latent_maps(self) -> list[Linear]:
        return [self.decay_down, self.gate_down]

    @property
    @override
    def inner_maps(self) -> list[Linear]:
        return [self.decay, self.gate]

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Float[Tensor, "batch seq dim"]:
        scan = self.select_scan(hidden)
        query, key, value = self.convolve_tokens(hidden, scope)
        groups = key.shape[1]
        decay = self.split_by_head(self.decay(self.decay_down(hidden)), groups)
        step = self.split_by_head(self.step(hidden), groups)
        with as_given(hidden):
            rate = -self.log_decay.to(decay.dtype).exp().view(groups, 1, 1, 1)
            bias = self.step_bias.to(decay.dtype).view(groups, 1, 1, -1)
            tokens = (
                normalize_length(query) / math.sqrt(self.spec.key_dim),
                normalize_length(key),
                value,
                rate * F.softplus(decay + bias),
                step.sigmoid(),
            )
            outputs = self.scan_tokens(scan, tokens, scope)
        heads = self.norm(outputs).flatten(2)
        gated = heads * self.gate(self.gate_down(hidden)).to(heads.dtype).sigmoid()
        return cast("Tensor", self.output(gated.to(hidden.dtype)))
