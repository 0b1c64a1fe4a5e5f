"""Fused head and mean cross-entropy: the logits of all tokens never exist at once.

Each block of tokens computes its logits and its part of both gradients before the next block:
three matrix products, as in the unfused loss. The backward pass only scales the gradients.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.model.linear import (
    add_product,
    apply_linear,
    as_given,
    multiply_matrices,
    product_dtype,
    product_into,
    wanted_gradients,
)
from components.model.softmax import Softmax, split_blocks, sum_dtype
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

    The average is over all targets; targets that are not ``counted`` add 0. A ``cap`` replaces
    logits by ``cap * tanh(logit / cap)`` (https://arxiv.org/abs/2408.00118, section 2). Padding
    rows of the vocabulary are included in the softmax, as in Megatron. If ``weight`` has only
    some of the rows, ``softmax`` communicates with the other rows' ranks. The gradient of
    ``weight`` is summed in float32 over the blocks and rounded once. A second backward pass
    raises RuntimeError unless the graph was retained.

    ``z_loss`` adds ``z_loss * logsumexp ** 2`` of each counted target, as in section 5 of
    https://arxiv.org/abs/2204.02311 (1e-4); its mean, without a gradient, is the second result.
    """
    apply: Callable[..., tuple[Tensor, Tensor | None]] = _LinearCrossEntropy.apply
    wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    precision = product_dtype(hidden)
    with as_given(hidden):
        inputs = hidden.to(precision).flatten(0, -2), weight, targets.flatten()
        flat_counted = None if counted is None else counted.flatten()
        return apply(*inputs, wanted, softmax or Softmax(), flat_counted, cap, z_loss)


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
        # Cast once, not in every block. The cast is inside of this function, so that a float32
        # weight gets a float32 gradient.
        rows = weight.to(hidden.dtype)
        sums = sum_dtype(hidden.dtype)
        hidden_gradient = torch.empty_like(hidden) if wanted[0] else None
        weight_gradient = torch.zeros_like(weight, dtype=sums) if wanted[1] else None
        total = hidden.new_zeros((), dtype=sums)
        penalty = torch.zeros_like(total) if z_loss else None
        for tokens in split_blocks(hidden, rows):
            logits, block_hidden = multiply_matrices(hidden[tokens], rows.T), hidden[tokens]
            block_counted = None if counted is None else counted[tokens]
            slope = None if cap is None else cap_logits_(logits, cap)
            if penalty is None:
                total += softmax.to_gradient(logits, targets[tokens], block_counted)
            else:
                losses = softmax.to_penalized_gradient(
                    logits, targets[tokens], z_loss, block_counted
                )
                total += losses.sum()
                penalty += losses[1]
            if slope is not None:
                logits *= slope
            if hidden_gradient is not None:
                product_into(hidden_gradient[tokens], logits, rows)
            if block_counted is not None:  # cheaper than masking the logits
                block_hidden = block_hidden * block_counted[:, None]
            if weight_gradient is not None:
                add_product(weight_gradient, logits.T, block_hidden)
            del logits, slope  # before the next block allocates its logits
        if hidden_gradient is not None and counted is not None:
            hidden_gradient *= counted[:, None]
        ctx.gradients = hidden_gradient, weight_gradient
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
        scale, gradients, keeps = upstream[0] / ctx.tokens, ctx.gradients, keeps_graph()
        if not keeps:
            ctx.gradients = None
        # Gradients that another backward pass will read must not change.
        scaled = (
            (gradient * scale if keeps else gradient.mul_(scale)).to(dtype)
            if gradient is not None and is_wanted
            else None
            for gradient, dtype, is_wanted in zip(
                gradients, ctx.dtypes, wanted_gradients(ctx)[:2], strict=True
            )
        )
        return *scaled, None, None, None, None, None, None


def cap_logits_(logits: Tensor, cap: float) -> Tensor:
    """Overwrite logits by their capped values, and return the derivative."""
    logits.div_(cap).tanh_()
    slope = 1.0 - logits.square()
    logits.mul_(cap)
    return slope


class Readout(nn.Module):
    """Readout: logits of hidden states (limited by ``cap``), or given targets, their loss.

    In training the loss includes a ``z_loss``; ``penalty`` is the z-loss of the last call.
    """

    penalty: Tensor | None = None

    def __init__(self, *, cap: float | None = None, z_loss: NonNegative = 0.0) -> None:
        super().__init__()
        self.cap = cap
        self.z_loss = z_loss

    def cap_logits(self, logits: Tensor) -> Tensor:
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        weight: Float[Tensor, "rows dim"],
        targets: Int[Tensor, "batch seq"] | None,
        counted: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        if targets is None:
            return self.cap_logits(apply_linear(hidden, weight))
        return self.compute_loss(hidden, weight, targets, Softmax(), counted)

    def compute_loss(
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
    """Output head: maps hidden states to logits, or, given targets, to their loss."""

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
