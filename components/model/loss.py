"""Head and mean cross-entropy in one, so that the logits of all tokens never exist at once.

A block of tokens goes all the way, from its logits to its share of both gradients, before the
next block begins: three products of matrices, as many as the plain way has, and the backward
pass only scales what is there. The softmax within a block goes by rows that fit a cache.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from components.model.products import as_given, linear, product, product_dtype, product_into
from components.torch_internals.operators import keeps_graph


class Blocks(NamedTuple):
    """Least tokens of a block's product, and the logits that the softmax touches at a time."""

    least_tokens: int
    chunk_elements: int


ON_DEVICE = Blocks(least_tokens=1_024, chunk_elements=2**26)
BLOCKS = {"cpu": Blocks(least_tokens=256, chunk_elements=2**20)}  # elsewhere ON_DEVICE


class Softmax:
    """Overwrite logits by ``softmax - one_hot``; return their summed cross-entropy."""

    def to_gradient(
        self, logits: Float[Tensor, "tokens rows"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        precision = torch.promote_types(logits.dtype, torch.float32)
        total = logits.new_zeros((), dtype=precision)
        for rows in chunks(logits):
            chunk, target = logits[rows].to(precision), targets[rows, None]
            chunk.sub_(chunk.amax(1, keepdim=True))
            total -= chunk.gather(1, target).sum()
            sums = chunk.exp_().sum(1, keepdim=True)
            total += sums.log().sum()
            chunk.div_(sums).scatter_add_(1, target, -torch.ones_like(sums))
            if chunk.dtype != logits.dtype:
                logits[rows] = chunk
        return total


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "rows dim"],
    targets: Int[Tensor, "*batch"],
    softmax: Softmax | None = None,
) -> Float[Tensor, ""]:
    """Average ``logsumexp(hidden @ weight.T) - logit of the target``, in float32.

    Rows added to the vocabulary for training take part like any other, as in Megatron. Where
    ``weight`` holds only some of the rows, ``softmax`` asks whoever has the others. A second
    backward pass raises RuntimeError unless the graph was kept.
    """
    apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
    # Cast here, once: inside, every block would cast the weight anew.
    precision = product_dtype(hidden)
    with as_given(hidden):
        hidden, weight = hidden.to(precision), weight.to(precision)
        wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
        given = hidden.flatten(0, -2), weight, targets.flatten()
        return apply(*given, wanted, softmax or Softmax())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        wanted: tuple[bool, bool],
        softmax: Softmax,
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight) if wanted[1] else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for tokens in blocks(hidden, weight):
            logits = product(hidden[tokens], weight.T)
            total += softmax.to_gradient(logits, targets[tokens])
            if of_hidden is not None:
                product_into(of_hidden[tokens], logits, weight)
            if of_weight is not None:
                of_weight.addmm_(logits.T, hidden[tokens])
            del logits  # before the next block's are made
        ctx.gradients = of_hidden, of_weight
        ctx.tokens = len(targets)
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("this loss was differentiated before: compute it again")
        scale, gradients = upstream[0] / ctx.tokens, ctx.gradients
        if keeps_graph():  # for a second pass
            gradients = [None if each is None else each.clone() for each in gradients]
        else:
            ctx.gradients = None
        scaled = (None if each is None else each.mul_(scale) for each in gradients)
        return *scaled, None, None, None


def blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Part the tokens so that the logits of a block are worth a product."""
    least, elements = BLOCKS.get(hidden.device.type, ON_DEVICE)
    return _slices(len(hidden), max(least, elements // len(weight)))


def chunks(logits: Float[Tensor, "tokens rows"]) -> Iterator[slice]:
    """Part the tokens so that a chunk of their logits fits a cache."""
    elements = BLOCKS.get(logits.device.type, ON_DEVICE).chunk_elements
    return _slices(len(logits), max(1, elements // logits.shape[1]))


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, length, size))


class Readout(nn.Module):
    """Compare hidden states with a vocabulary's rows; given targets, return the loss."""

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
    """Map hidden states to logits, or, given targets, to their mean cross-entropy."""

    def __init__(self, *, dim: int, rows: int) -> None:
        super().__init__(dim, rows, bias=False)
        self.readout = Readout()

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        targets: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        return cast("Tensor", self.readout(hidden, self.weight, targets))
