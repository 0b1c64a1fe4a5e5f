"""Normalization over the last dimension, in the family that RMSNorm and LayerNorm span."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from components.errors import RecipeError
from components.model.products import as_given
from components.ranges import Count, NonNegative


class Norm(nn.Module):
    """Scale each vector to unit size: RMSNorm, or with ``center`` LayerNorm.

    RMSNorm is https://arxiv.org/abs/1910.07467, equation 4, with ``eps`` added to the mean
    square; LayerNorm is https://arxiv.org/abs/1607.06450. Both are torch's own kernels, which
    take sums in float32 and give the precision that came in, without autocast.

    Raises:
        RecipeError: a bias without centering, which no kernel and no published model has.
    """

    def __init__(
        self, *, dim: int, eps: NonNegative, center: bool, weight: bool, bias: bool
    ) -> None:
        super().__init__()
        if bias and not center:
            problem = "true, but a norm that does not center has no bias"
            remedy = "set model.norm.bias=false, or model.norm.center=true for LayerNorm"
            raise RecipeError("model.norm.bias", problem, remedy)
        self.eps = eps
        self.center = center
        self.weight = nn.Parameter(torch.ones(dim)) if weight else None
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        shape = hidden.shape[-1:]
        # A fused kernel wants weights in the precision of the vectors.
        weight, bias = (
            None if values is None else values.to(hidden.dtype)
            for values in (self.weight, self.bias)
        )
        with as_given(hidden):
            if self.center:
                return F.layer_norm(hidden, shape, weight, bias, self.eps)
            return F.rms_norm(hidden, shape, weight, self.eps)


class HeadNorm(Norm):
    """Scale each head's part of a vector by itself, with the same weights in all heads.

    Of queries and keys, before they are turned: https://arxiv.org/abs/2505.09388, section 2.

    Raises:
        RecipeError: the vectors are no whole number of heads, or as `Norm` does.
    """

    def __init__(
        self,
        *,
        dim: int,
        head_dim: Count,
        eps: NonNegative,
        center: bool,
        weight: bool,
        bias: bool,
    ) -> None:
        if dim % head_dim:
            problem = f"{head_dim} does not divide the width {dim:,} that is normalized"
            remedy = "give the heads' own, head_dim of model.attention"
            raise RecipeError("model.attention.qk_norm.head_dim", problem, remedy)
        super().__init__(dim=head_dim, eps=eps, center=center, weight=weight, bias=bias)
        self.head_dim = head_dim

    @override
    def forward(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        heads = hidden.view(*hidden.shape[:-1], -1, self.head_dim)
        return super().forward(heads).flatten(-2)
