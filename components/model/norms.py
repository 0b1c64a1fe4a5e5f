"""Normalization over the last dimension: RMSNorm and LayerNorm."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from components.config.model_spec.norms import NormSpec
from components.model.linear import as_given


class Norm(nn.Module):
    """RMSNorm, or with ``center`` LayerNorm.

    https://arxiv.org/abs/1910.07467, equation 4 (``eps`` added to the mean square), and
    https://arxiv.org/abs/1607.06450. Sums are in float32; the output has the input's dtype.
    """

    def __init__(self, spec: NormSpec, *, dim: int) -> None:
        super().__init__()
        self.eps = spec.eps
        self.center = spec.center
        self.weight = nn.Parameter(torch.ones(dim)) if spec.weight else None
        self.bias = nn.Parameter(torch.zeros(dim)) if spec.bias else None

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        shape = hidden.shape[-1:]
        # The fused kernel needs weights in the dtype of the input.
        weight, bias = (
            None if values is None else values.to(hidden.dtype)
            for values in (self.weight, self.bias)
        )
        with as_given(hidden):
            if self.center:
                return F.layer_norm(hidden, shape, weight, bias, self.eps)
            return F.rms_norm(hidden, shape, weight, self.eps)
