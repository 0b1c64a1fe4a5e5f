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

from components.model.products import (
    add_product,
    as_given,
    linear,
    product,
    product_dtype,
    product_into,
    wanted_gradients,
)
from components.torch_internals.operators import keeps_graph


class Blocks(NamedTuple):
    """Least tokens of a block's product, and the logits that the softmax touches at a time."""

    least_tokens: int
    chunk_elements: int


# A block adds to a float32 sum of all rows: in 1,024 tokens that was a fifth of an H100's time.
ON_DEVICE = Blocks(least_tokens=2_048, chunk_elements=2**26)
TOLD_BY = 64  # probabilities of 16 bits that tell a sum
BLOCKS = {"cpu": Blocks(least_tokens=256, chunk_elements=2**20)}  # elsewhere ON_DEVICE


class Softmax:
    """Overwrite logits by ``softmax - one_hot``; return their summed cross-entropy.

    Tokens that are not ``kept`` have no part in the sum.
    """

    def to_gradient(
        self,
        logits: Float[Tensor, "tokens rows"],
        targets: Int[Tensor, " tokens"],
        kept: Float[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        total = logits.new_zeros((), dtype=sum_dtype(logits.dtype))
        for tokens in chunks(logits):
            chunk, target = logits[tokens], targets[tokens, None]
            of_target = chunk.gather(1, target)
            largest, log_sum = log_sums(chunk)  # which overwrites the chunk
            of_target = of_target - largest - log_sum
            total -= (of_target if kept is None else of_target * kept[tokens, None]).sum()
            chunk.scatter_(1, target, of_target.expm1().to(chunk.dtype))
        return total


def log_sums(
    logits: Float[Tensor, "tokens rows"],
) -> tuple[Float[Tensor, "tokens 1"], Float[Tensor, "tokens 1"]]:
    """Overwrite logits by their softmax; return the largest and ``logsumexp - largest``.

    Torch's softmax is one kernel, which keeps float32 to itself: of its sums only the
    probabilities are seen, ``p = exp(logit - largest) / sum``, and the largest is 1 / sum. In
    16 bits that one is rounded. So is each other, by a remainder of its own: the mean over
    some of them tells the logarithm of the sum eight times as exactly.
    """
    dtype, wide = logits.dtype, sum_dtype(logits.dtype)
    some = logits[:, :TOLD_BY].to(wide) if dtype != wide else None
    largest = logits.amax(1, keepdim=True).to(wide)
    torch.softmax(logits, 1, out=logits)  # each thread reads a number before it writes it
    log_sum = -logits.amax(1, keepdim=True).to(wide).log()
    if some is not None:
        shares = logits[:, :TOLD_BY].to(wide)
        usable = shares >= torch.finfo(dtype).smallest_normal
        told = (some - largest - shares.log()).where(usable, 0.0)
        log_sum = (log_sum + told.sum(1, keepdim=True)) / (1 + usable.sum(1, keepdim=True))
    return largest, log_sum.clamp_min(0.0)  # the largest is a part of the sum


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose what numbers of a dtype are added up in."""
    return torch.promote_types(dtype, torch.float32)


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "rows dim"],
    targets: Int[Tensor, "*batch"],
    softmax: Softmax | None = None,
    *,
    ignores: bool = False,
) -> Float[Tensor, ""]:
    """Average ``logsumexp(hidden @ weight.T) - logit of the target``, in float32.

    Rows added to the vocabulary for training take part like any other, as in Megatron. Where
    ``weight`` holds only some of the rows, ``softmax`` asks whoever has the others. The
    gradient of ``weight`` has its dtype, and is rounded once, if at all: over the blocks it is
    summed in float32. Where it ``ignores`` targets below 0 these have no loss; the mean is
    still over all tokens, so that each weighs the same in whatever microbatch. A second
    backward pass raises RuntimeError unless the graph was kept.
    """
    apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
    wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    precision = product_dtype(hidden)
    with as_given(hidden):
        given = hidden.to(precision).flatten(0, -2), weight, targets.flatten()
        return apply(*given, wanted, softmax or Softmax(), ignores)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        wanted: tuple[bool, bool],
        softmax: Softmax,
        ignores: bool,
    ) -> Tensor:
        # Cast once, not in every block; and here, so that a wide weight's gradient is wide.
        rows = weight.to(hidden.dtype)
        sums = sum_dtype(hidden.dtype)
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=sums) if wanted[1] else None
        total = hidden.new_zeros((), dtype=sums)
        kept = (targets >= 0).to(sums) if ignores else None
        if kept is not None:  # without their hidden states they have no part in the weights
            targets, hidden = targets.clamp_min(0), hidden * kept[:, None].to(hidden.dtype)
        for tokens in blocks(hidden, rows):
            logits = product(hidden[tokens], rows.T)
            of_tokens = None if kept is None else kept[tokens]
            total += softmax.to_gradient(logits, targets[tokens], of_tokens)
            if of_hidden is not None:
                product_into(of_hidden[tokens], logits, rows)
            if of_weight is not None:
                add_product(of_weight, logits.T, hidden[tokens])
            del logits  # before the next block's are made
        if of_hidden is not None and kept is not None:
            of_hidden.mul_(kept[:, None])
        ctx.gradients = of_hidden, of_weight
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.tokens = len(targets)
        return total / len(targets)

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
        return *scaled, None, None, None, None


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
    """Compare hidden states with a vocabulary's rows; given targets, return the loss.

    Whoever may give targets below 0, which have none, says that it ``ignores`` them.
    """

    ignores = False

    def forward(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        weight: Float[Tensor, "rows dim"],
        targets: Int[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        if targets is None:
            return linear(hidden, weight)
        return linear_cross_entropy(hidden, weight, targets, ignores=self.ignores)


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
