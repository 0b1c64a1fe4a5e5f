"""Head and mean cross-entropy in one, so that the logits of all tokens never exist at once.

A block of tokens goes all the way, from its logits to its share of both gradients, before the
next block begins: three products of matrices, as many as the plain way has, and the backward
pass only scales what is there.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.model.products import (
    add_product,
    as_given,
    linear,
    product,
    product_dtype,
    product_into,
    wanted_gradients,
)
from components.model.softmax import Softmax, blocks, sum_dtype
from components.ranges import NonNegative
from components.torch_internals.operators import keeps_graph

if TYPE_CHECKING:
    from collections.abc import Callable


def penalized_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "rows dim"],
    targets: Int[Tensor, "*batch"],
    softmax: Softmax | None = None,
    counted: Bool[Tensor, "*batch"] | None = None,
    cap: float | None = None,
    z_loss: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
    """Average ``logsumexp(hidden @ weight.T) - logit of the target``, in float32.

    The average is over all targets; those that are not ``counted`` add 0. With a ``cap`` logits
    are ``cap * tanh(logit / cap)`` first (https://arxiv.org/abs/2408.00118, section 2).
    Rows added to the vocabulary for training take part like any other, as in Megatron. Where
    ``weight`` holds only some of the rows, ``softmax`` asks whoever has the others. The
    gradient of ``weight`` has its dtype, and is rounded once, if at all: over the blocks it is
    summed in float32. A second backward pass raises RuntimeError unless the graph was kept.

    ``z_loss`` adds ``z_loss * logsumexp ** 2`` of each counted target
    (https://arxiv.org/abs/2204.02311, section 5, has 1e-4). The second result is the mean of
    that term, without a gradient, or None.
    """
    apply: Callable[..., tuple[Tensor, Tensor | None]] = _LinearCrossEntropy.apply
    wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    precision = product_dtype(hidden)
    with as_given(hidden):
        given = hidden.to(precision).flatten(0, -2), weight, targets.flatten()
        which = None if counted is None else counted.flatten()
        return apply(*given, wanted, softmax or Softmax(), which, cap, z_loss)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        wanted: tuple[bool, bool],
        softmax: Softmax,
        counted: Tensor | None,
        cap: float | None,
        z_loss: float,
    ) -> tuple[Tensor, Tensor | None]:
        # Cast once, not in every block; and here, so that a wide weight's gradient is wide.
        rows = weight.to(hidden.dtype)
        sums = sum_dtype(hidden.dtype)
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=sums) if wanted[1] else None
        total = hidden.new_zeros((), dtype=sums)
        penalty = torch.zeros_like(total) if z_loss else None
        for tokens in blocks(hidden, rows):
            logits, given = product(hidden[tokens], rows.T), hidden[tokens]
            some = None if counted is None else counted[tokens]
            slope = None if cap is None else cap_logits_(logits, cap)
            if penalty is None:
                total += softmax.to_gradient(logits, targets[tokens], some)
            else:
                both = softmax.to_penalized_gradient(logits, targets[tokens], z_loss, some)
                total += both.sum()
                penalty += both[1]
            if slope is not None:
                logits *= slope
            if of_hidden is not None:
                product_into(of_hidden[tokens], logits, rows)
            if some is not None:  # fewer numbers than the logits that they meet
                given = given * some[:, None]
            if of_weight is not None:
                add_product(of_weight, logits.T, given)
            del logits, slope  # before the next block's are made
        if of_hidden is not None and counted is not None:
            of_hidden *= counted[:, None]
        ctx.gradients = of_hidden, of_weight
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.tokens = len(targets)
        if penalty is None:
            return total / len(targets), None
        penalty = penalty / len(targets)
        ctx.mark_non_differentiable(penalty)
        return total / len(targets), penalty

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("this loss was differentiated before: compute it again")
        scale, gradients, again = upstream[0] / ctx.tokens, ctx.gradients, keeps_graph()
        if not again:
            ctx.gradients = None
        # What is kept for another pass must not change.
        scaled = (
            (each * scale if again else each.mul_(scale)).to(dtype)
            if each is not None and asked
            else None
            for each, dtype, asked in zip(
                gradients, ctx.dtypes, wanted_gradients(ctx)[:2], strict=True
            )
        )
        return *scaled, None, None, None, None, None, None


def cap_logits_(logits: Tensor, cap: float) -> Tensor:
    """Overwrite logits by capped ones, and return their derivative."""
    logits.div_(cap).tanh_()
    slope = 1.0 - logits.square()
    logits.mul_(cap)
    return slope


class Readout(nn.Module):
    """Compare hidden states with a vocabulary's rows; given targets, return the loss.

    No logit is larger than ``cap``. In training the loss has a ``z_loss``, of which ``penalty``
    is what the last call added.
    """

    penalty: Tensor | None = None

    def __init__(self, *, cap: float | None = None, z_loss: NonNegative = 0.0) -> None:
        super().__init__()
        self.cap = cap
        self.z_loss = z_loss

    def capped(self, logits: Tensor) -> Tensor:
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        weight: Float[Tensor, "rows dim"],
        targets: Int[Tensor, "batch seq"] | None,
        counted: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        if targets is None:
            return self.capped(linear(hidden, weight))
        return self.loss(hidden, weight, targets, Softmax(), counted)

    def loss(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        softmax: Softmax,
        counted: Tensor | None,
    ) -> Float[Tensor, ""]:
        z_loss = self.z_loss if self.training else 0.0
        loss, self.penalty = penalized_cross_entropy(
            hidden, weight, targets, softmax, counted, self.cap, z_loss
        )
        return loss


class Head(nn.Linear):
    """Map hidden states to logits, or, given targets, to their mean cross-entropy."""

    def __init__(self, *, dim: int, rows: int, readout: Readout) -> None:
        super().__init__(dim, rows, bias=False)
        self.readout = readout

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        targets: Int[Tensor, "batch seq"] | None = None,
        counted: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        return cast("Tensor", self.readout(hidden, self.weight, targets, counted))
