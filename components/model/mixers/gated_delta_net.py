"""Gated delta net: https://arxiv.org/abs/2412.06464, as in Qwen3-Next and OLMo-Hybrid."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.mixers import GatedDeltaNetSpec
from components.model.attention import AttentionContext
from components.model.linear import Linear, as_given
from components.model.mixers.mixer import Mixer, normalize_length
from components.model.mixers.scan_kernels import DELTA_SCANS


class GatedDeltaNet(Mixer):
    """Gated delta net: the delta rule with one decay per head, a norm and a SiLU gate.

    Decay: ``exp(-exp(log_decay) softplus(decay + step_bias))``. Step size: ``sigmoid(step)``,
    doubled with ``negative_eigenvalues`` (https://arxiv.org/abs/2411.12537). Queries and keys
    have length 1; queries are divided by the root of ``key_dim``.
    """

    scans = DELTA_SCANS

    def __init__(self, spec: GatedDeltaNetSpec, *, dim: int) -> None:
        super().__init__(spec, dim=dim)
        self.decay = Linear(dim, spec.num_heads, bias=False)
        self.gate = Linear(dim, spec.value_width, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(spec.num_heads))
        self.norm = spec.norm.build_part(dim=spec.value_dim)
        self.largest_step = 2.0 if spec.negative_eigenvalues else 1.0

    @property
    @override
    def split_maps(self) -> list[Linear]:
        return [*super().split_maps, self.decay, self.gate]

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Float[Tensor, "batch seq dim"]:
        scan = self.select_scan(hidden)
        query, key, value = self.convolve_tokens(hidden, scope)
        groups = key.shape[1]
        decay, step = self.split_by_head(self.decay(hidden), groups), self.step(hidden)
        with as_given(hidden):
            shape = groups, -1, 1, 1
            rate = -self.log_decay.to(decay.dtype).exp().view(shape)
            size = F.softplus(decay + self.step_bias.to(decay.dtype).view(shape))
            tokens = (
                normalize_length(query) / math.sqrt(self.spec.key_dim),
                normalize_length(key),
                value,
                rate * size,
                self.split_by_head(step, groups).sigmoid() * self.largest_step,
            )
            outputs = self.scan_tokens(scan, tokens, scope)
        heads = self.norm(outputs).flatten(2)
        gated = heads * F.silu(self.gate(hidden).to(heads.dtype))
        return cast("Tensor", self.output(gated.to(hidden.dtype)))
