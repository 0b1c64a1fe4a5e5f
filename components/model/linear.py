"""Linear maps onto the residual stream and onto the vocabulary."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from components.model.loss import linear_cross_entropy
from components.model.products import linear


class Linear(nn.Linear):
    """Map as torch's own does, by the library that is fast on this processor."""

    @override
    def forward(self, input: Float[Tensor, "*batch depth"]) -> Float[Tensor, "*batch rows"]:
        return linear(input, self.weight, self.bias)


class ResidualLinear(Linear):
    """Map a branch back onto the residual stream.

    Initialization finds such a map by ``writes_residual``, never by its name, so a new kind of
    branch (experts, another attention) only has to end in one, or to carry the same mark.
    """

    writes_residual = True


class Readout(nn.Module):
    """Compare hidden states with the vocabulary's rows; given targets, go on to their loss.

    No parameters, so it is easily replaced: the rows are those of a head or of an embedding.
    """

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        weight: Float[Tensor, "rows dim"],
        targets: Int[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        if targets is None:
            return linear(hidden, weight)
        return linear_cross_entropy(hidden, weight, targets)


class Head(nn.Linear):
    """Map hidden states to logits, or, given targets, straight to their mean cross-entropy.

    The loss goes through ``forward`` so that whatever gathers or casts the weight around a
    module's call does so here too.
    """

    def __init__(self, *, dim: int, rows: int) -> None:
        super().__init__(dim, rows, bias=False)
        self.readout = Readout()

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        targets: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        result: Tensor = self.readout(hidden, self.weight, targets)
        return result
