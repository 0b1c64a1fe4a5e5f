"""Mamba-2: https://arxiv.org/abs/2405.21060, as in Nemotron-H and Falcon-H1."""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.config.model_spec.mixers import Mamba2Spec
from components.config.model_spec.norms import NormSpec
from components.model.attention import AttentionContext
from components.model.linear import Linear, as_given
from components.model.mixers.mixer import Mixer, join_heads
from components.model.mixers.scan_kernels import MAMBA2_SCANS


class GroupedNorm(nn.Module):
    """RMSNorm over the channels of each group of heads, with a weight for each channel."""

    def __init__(self, spec: NormSpec, *, width: int, dim: int) -> None:
        super().__init__()
        self.eps, self.width = spec.eps, width
        self.weight = nn.Parameter(torch.ones(dim)) if spec.weight else None

    def forward(self, channels: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        grouped = channels.reshape(*channels.shape[:-1], -1, self.width)
        normed = F.rms_norm(grouped, (self.width,), None, self.eps).flatten(-2)
        return normed if self.weight is None else normed * self.weight.to(normed.dtype)


class Mamba2(Mixer):
    """Mamba-2: the linear recurrence with one decay per head, a skip, a SiLU gate and a norm.

    The step size ``softplus(step + step_bias)``, within ``step_limits``, multiplies values and
    the decay's exponent ``-exp(log_decay)``. ``skip`` times the values are added.
    """

    scans = MAMBA2_SCANS

    def __init__(self, spec: Mamba2Spec, *, dim: int) -> None:
        super().__init__(spec, dim=dim)
        self.gate = Linear(dim, spec.value_width, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(spec.num_heads))
        self.skip = nn.Parameter(torch.ones(spec.num_heads))
        width = spec.value_width // spec.num_key_heads
        norm = spec.norm
        self.norm = None
        if norm is not None:
            self.norm = GroupedNorm(norm, width=width, dim=spec.value_width)
        self.norm_first = spec.norm_before_gate
        self.least_step, self.largest_step = spec.step_limits

    @property
    @override
    def split_maps(self) -> list[Linear]:
        return [*super().split_maps, self.gate]

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], scope: AttentionContext
    ) -> Float[Tensor, "batch seq dim"]:
        scan = self.select_scan(hidden)
        query, key, value = self.convolve_tokens(hidden, scope)
        groups = key.shape[1]
        step, gate = self.split_by_head(self.step(hidden), groups), self.gate(hidden)
        with as_given(hidden):
            bias, log_decay, skip = (
                vector.to(step.dtype).view(groups, -1, 1, 1)
                for vector in (self.step_bias, self.log_decay, self.skip)
            )
            size = F.softplus(step + bias).clamp(self.least_step, self.largest_step)
            tokens = (query, key, value, size, (-log_decay.exp()).expand_as(size))
            outputs = self.scan_tokens(scan, tokens, scope) + join_heads(value * skip)
            heads = outputs.flatten(2)
            gate = F.silu(gate.to(heads.dtype))
            if self.norm is None:
                gated = heads * gate
            elif self.norm_first:
                gated = self.norm(heads) * gate
            else:
                gated = self.norm(heads * gate)
        return cast("Tensor", self.output(gated.to(hidden.dtype)))
