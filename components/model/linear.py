"""Linear maps onto the residual stream and onto the vocabulary."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from components.model.loss import linear_cross_entropy


class ResidualLinear(nn.Linear):
    """Map a branch back onto the residual stream.

    Initialization finds such a map by ``writes_residual``, never by its name, so a new kind of
    branch (experts, another attention) only has to end in one, or to carry the same mark.
    """

    writes_residual = True


class Head(nn.Linear):
    """Map hidden states to logits, or, given targets, straight to their mean cross-entropy.

    The loss goes through ``forward`` so that whatever gathers or casts the weight around a
    module's call does so here too.
    """

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        targets: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        if targets is None:
            return super().forward(hidden)
        return linear_cross_entropy(hidden, self.weight, targets)
